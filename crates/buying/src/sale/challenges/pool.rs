//! Pictures and sliders are drawn ahead: a rush does not wait for drawing. Threads of the lowest priority keep a bounded number of each
//! wanted kind ready.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex};
use seckill_captcha::{DrawError, picture, slider};

use super::Question;
use super::seal::Solution;
use seckill_domain::captcha::ChallengeKind;
use seckill_domain::pressure::Pressure;
use seckill_runtime::low_priority;

/// Its threads end when it is dropped.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    shelves: Mutex<Shelves>,
    /// A kind lacks challenges, or the pool is dropped.
    changed: Condvar,
}

#[derive(Default)]
struct Shelves {
    images: Shelf,
    sliders: Shelf,
    is_closed: bool,
}

#[derive(Default)]
struct Shelf {
    ready: VecDeque<(Question, Solution)>,
    max: usize,
    is_wanted: bool,
}

impl Shelves {
    /// A proof of work needs no drawing.
    fn of(&mut self, kind: ChallengeKind) -> Option<&mut Shelf> {
        match kind {
            ChallengeKind::Image => Some(&mut self.images),
            ChallengeKind::Slider => Some(&mut self.sliders),
            ChallengeKind::Work => None,
        }
    }
}

impl Shelf {
    /// How full the shelf is, if it lacks challenges.
    fn lacks(&self) -> Option<f64> {
        let has_room = self.is_wanted && self.ready.len() < self.max;
        has_room.then(|| self.ready.len() as f64 / self.max as f64)
    }

    fn want(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        if !is_wanted {
            self.ready = VecDeque::new();
        }
    }
}

/// The rest after a drawing that failed: the next would fail, too.
const FAILED_REST: Duration = Duration::from_secs(1);

impl Pool {
    /// Starts the threads; without one, nothing is ready. While purchases wait, a thread rests after each drawing.
    pub(crate) fn start(
        images_max: usize,
        sliders_max: usize,
        threads: usize,
        pressure: &Arc<Pressure>,
    ) -> io::Result<Self> {
        let pool = Self { shared: Arc::default() };
        {
            let mut shelves = pool.shared.shelves.lock();
            (shelves.images.max, shelves.sliders.max) = (images_max, sliders_max);
        }
        for n in 0..threads {
            let (shared, pressure) = (Arc::clone(&pool.shared), Arc::clone(pressure));
            low_priority::spawn(format!("challenges-{n}"), move || draw_ahead(&shared, &pressure))?;
        }
        Ok(pool)
    }

    pub(crate) fn take(&self, kind: ChallengeKind) -> Option<(Question, Solution)> {
        let taken = self.shared.shelves.lock().of(kind)?.ready.pop_front();
        self.shared.changed.notify_one();
        taken
    }

    /// From now on, keeps these kinds ready, and no others.
    pub(crate) fn want(&self, images: bool, sliders: bool) {
        let mut shelves = self.shared.shelves.lock();
        shelves.images.want(images);
        shelves.sliders.want(sliders);
        drop(shelves);
        self.shared.changed.notify_all();
    }

    pub(crate) fn ready(&self, kind: ChallengeKind) -> usize {
        self.shared.shelves.lock().of(kind).map_or(0, |shelf| shelf.ready.len())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shelves.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

/// The work of each thread until the pool is dropped.
fn draw_ahead(shared: &Shared, pressure: &Pressure) {
    // Seeded by the system, so that nobody can predict the challenges.
    let mut rng = rand::rng();
    while let Some(kind) = shared.wait_for_next() {
        let began = Instant::now();
        match draw(kind, &mut rng) {
            Ok(drawn) => {
                let mut shelves = shared.shelves.lock();
                if let Some(shelf) = shelves.of(kind).filter(|shelf| shelf.lacks().is_some()) {
                    shelf.ready.push_back(drawn);
                }
            }
            Err(error) => {
                tracing::error!(%error, "a challenge could not be drawn");
                std::thread::sleep(FAILED_REST);
            }
        }
        std::thread::sleep(pressure.read_rest(began.elapsed(), Instant::now()));
    }
}

impl Shared {
    /// The kind of the emptiest shelf, when one lacks challenges; `None` when the pool is dropped.
    fn wait_for_next(&self) -> Option<ChallengeKind> {
        let mut shelves = self.shelves.lock();
        while !shelves.is_closed {
            let lacks = |kind| Some((shelves.of(kind)?.lacks()?, kind));
            let lacking = [ChallengeKind::Image, ChallengeKind::Slider].into_iter().filter_map(lacks);
            if let Some((_, kind)) = lacking.min_by(|(one, _), (other, _)| one.total_cmp(other)) {
                return Some(kind);
            }
            self.changed.wait(&mut shelves);
        }
        None
    }
}

fn draw(kind: ChallengeKind, rng: &mut impl rand::Rng) -> Result<(Question, Solution), DrawError> {
    if kind == ChallengeKind::Slider {
        let drawn = slider::draw(rng)?;
        let (image, piece) = (data_address(&drawn.image), data_address(&drawn.piece));
        return Ok((Question::Slider { image, piece, piece_y: drawn.y }, Solution::Slider { x: drawn.x }));
    }
    let drawn = picture::draw(rng)?;
    Ok((Question::Image { image: data_address(&drawn.png) }, Solution::Image { text: drawn.text }))
}

fn data_address(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine, threads of the lowest priority get little time.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn until_ready(pool: &Pool, images: usize, sliders: usize) {
        let deadline = Instant::now() + PATIENCE;
        while (pool.ready(ChallengeKind::Image), pool.ready(ChallengeKind::Slider)) != (images, sliders) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_wanted_is_drawn_ahead_up_to_its_bound_and_replaced_when_it_is_taken() {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(250)));
        let pool = Pool::start(3, 2, 2, &pressure).unwrap();
        assert!(pool.take(ChallengeKind::Image).is_none(), "nothing is wanted yet");
        pool.want(true, true);
        until_ready(&pool, 3, 2);
        let taken = pool.take(ChallengeKind::Image);
        let Some((Question::Image { image }, Solution::Image { text })) = taken else { panic!("{taken:?}") };
        assert_eq!(text.len(), picture::LENGTH);
        assert!(image.starts_with("data:image/png;base64,iVBORw0KGgo"), "{image}");
        let taken = pool.take(ChallengeKind::Slider);
        let Some((Question::Slider { piece, .. }, Solution::Slider { .. })) = taken else { panic!("{taken:?}") };
        assert!(piece.starts_with("data:image/png;base64,"));
        until_ready(&pool, 3, 2);
        pool.want(false, true);
        until_ready(&pool, 0, 2);
    }
}
