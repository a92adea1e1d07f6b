//! Random numbers that are the same for the same seed, in every version of this program and on every machine: SplitMix64 (Guy
//! Steele, Doug Lea and Christine Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, and 1 at most.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u32
    }

    /// Of an exponential distribution: the times between independent arrivals are so.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means and bounds are what the names say.
    #[test]
    fn numbers_are_spread_as_they_should_be() {
        let (mut random, draws) = (Random::new(7), 200_000);
        let mean = (0..draws).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(draws);
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        let mut hits = [0_u32; 5];
        (0..draws).for_each(|_| hits[random.below(5) as usize] += 1);
        assert!(hits.iter().all(|hits| hits.abs_diff(draws / 5) < draws / 50), "{hits:?}");
        assert!((0..draws).map(|_| random.unit()).all(|unit| unit > 0.0 && unit <= 1.0));
    }

    /// The first numbers of seed 0, as the authors' own program prints them.
    #[test]
    fn the_stream_is_splitmix64() {
        let mut random = Random::new(0);
        assert_eq!([random.next(), random.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
