//! Pictures and sliders that are drawn ahead, so that a rush does not wait for drawing: threads of the lowest priority keep a
//! bounded number of each kind ready, as long as a sale is near that asks for them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex};
use seckill_captcha::{DrawError, picture, slider};

use crate::domain::captcha::ChallengeKind;
use crate::domain::pressure::Pressure;
use crate::low_priority;

/// How many are kept ready, and how many threads draw them. Without a thread there are none.
#[derive(Debug, Clone, Copy)]
pub struct PoolTerms {
    pub images_max: usize,
    pub sliders_max: usize,
    pub threads: usize,
}

/// A picture to be read: a `data:` address, and its text.
pub(super) struct DrawnImage {
    pub text: String,
    pub image: String,
}

/// A slider: `data:` addresses of the picture and the piece, and where the gap is.
pub(super) struct DrawnSlider {
    pub x: u16,
    pub y: u16,
    pub image: String,
    pub piece: String,
}

/// Which kinds are to be drawn ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub images: bool,
    pub sliders: bool,
}

/// What is ready. Its threads end when it is dropped.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    shelves: Mutex<Shelves>,
    /// Something is to be drawn, or the pool is dropped.
    changed: Condvar,
}

#[derive(Default)]
struct Shelves {
    images: Shelf<DrawnImage>,
    sliders: Shelf<DrawnSlider>,
    is_closed: bool,
}

struct Shelf<T> {
    ready: VecDeque<T>,
    max: usize,
    is_wanted: bool,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { ready: VecDeque::new(), max: 0, is_wanted: false }
    }
}

impl<T> Shelf<T> {
    /// How full it is, if there is to be more.
    fn lacks(&self) -> Option<f64> {
        let has_room = self.is_wanted && self.ready.len() < self.max;
        has_room.then(|| self.ready.len() as f64 / self.max as f64)
    }

    fn put(&mut self, drawn: T) {
        if self.lacks().is_some() {
            self.ready.push_back(drawn);
        }
    }

    /// Old ones are as good as new ones, but are given up when nothing asks for them.
    fn want(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        if !is_wanted {
            self.ready = VecDeque::new();
        }
    }
}

/// What a thread draws next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Image,
    Slider,
}

/// The rest after a drawing that failed: the next would fail, too.
const FAILED_REST: Duration = Duration::from_secs(1);

impl Pool {
    /// Starts the threads. After each drawing a thread rests while purchases wait, as reads do.
    pub fn start(terms: PoolTerms, pressure: &Arc<Pressure>) -> io::Result<Self> {
        let pool = Self { shared: Arc::default() };
        {
            let mut shelves = pool.shared.shelves.lock();
            (shelves.images.max, shelves.sliders.max) = (terms.images_max, terms.sliders_max);
        }
        for n in 0..terms.threads {
            let (shared, pressure) = (Arc::clone(&pool.shared), Arc::clone(pressure));
            low_priority::spawn(format!("challenges-{n}"), move || draw_ahead(&shared, &pressure))?;
        }
        Ok(pool)
    }

    pub fn take_image(&self) -> Option<DrawnImage> {
        self.take(|shelves| shelves.images.ready.pop_front())
    }

    pub fn take_slider(&self) -> Option<DrawnSlider> {
        self.take(|shelves| shelves.sliders.ready.pop_front())
    }

    fn take<T>(&self, take: impl FnOnce(&mut Shelves) -> Option<T>) -> Option<T> {
        let taken = take(&mut self.shared.shelves.lock());
        self.shared.changed.notify_one();
        taken
    }

    /// Whether there is one of this kind. A proof of work needs no drawing.
    pub fn has(&self, kind: ChallengeKind) -> bool {
        let (images, sliders) = self.ready();
        match kind {
            ChallengeKind::Image => images > 0,
            ChallengeKind::Slider => sliders > 0,
            ChallengeKind::Work => true,
        }
    }

    /// From now on, keeps these kinds ready, and no others.
    pub fn want(&self, wanted: Wanted) {
        let mut shelves = self.shared.shelves.lock();
        shelves.images.want(wanted.images);
        shelves.sliders.want(wanted.sliders);
        drop(shelves);
        self.shared.changed.notify_all();
    }

    /// How many pictures and sliders are ready.
    pub fn ready(&self) -> (usize, usize) {
        let shelves = self.shared.shelves.lock();
        (shelves.images.ready.len(), shelves.sliders.ready.len())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shelves.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

/// What each thread does until the pool is dropped.
fn draw_ahead(shared: &Shared, pressure: &Pressure) {
    // Seeded by the system, and not to be guessed.
    let mut rng = rand::rng();
    while let Some(next) = shared.wait_for_next() {
        let began = Instant::now();
        let drawn = match next {
            Next::Image => draw_image(&mut rng).map(|drawn| shared.shelves.lock().images.put(drawn)),
            Next::Slider => draw_slider(&mut rng).map(|drawn| shared.shelves.lock().sliders.put(drawn)),
        };
        if let Err(error) = drawn {
            tracing::error!(%error, "a challenge could not be drawn");
            std::thread::sleep(FAILED_REST);
        }
        std::thread::sleep(pressure.read_rest(began.elapsed(), Instant::now()));
    }
}

impl Shared {
    /// What is short, once something is; `None` when the pool is dropped.
    fn wait_for_next(&self) -> Option<Next> {
        let mut shelves = self.shelves.lock();
        loop {
            if shelves.is_closed {
                return None;
            }
            match (shelves.images.lacks(), shelves.sliders.lacks()) {
                (Some(images), Some(sliders)) if sliders < images => return Some(Next::Slider),
                (Some(_), _) => return Some(Next::Image),
                (None, Some(_)) => return Some(Next::Slider),
                (None, None) => self.changed.wait(&mut shelves),
            }
        }
    }
}

fn draw_image(rng: &mut impl rand::Rng) -> Result<DrawnImage, DrawError> {
    let drawn = picture::draw(rng)?;
    Ok(DrawnImage { text: drawn.text, image: data_address(&drawn.png) })
}

fn draw_slider(rng: &mut impl rand::Rng) -> Result<DrawnSlider, DrawError> {
    let drawn = slider::draw(rng)?;
    Ok(DrawnSlider { x: drawn.x, y: drawn.y, image: data_address(&drawn.image), piece: data_address(&drawn.piece) })
}

fn data_address(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a test waits for threads that are the last to run: on a busy machine they get a hundredth of a processor.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn pool(threads: usize) -> Pool {
        let pressure = Arc::new(Pressure::new(Instant::now(), Duration::from_millis(250)));
        Pool::start(PoolTerms { images_max: 3, sliders_max: 2, threads }, &pressure).unwrap()
    }

    /// Waits until so many are ready.
    fn until_ready(pool: &Pool, ready: (usize, usize)) {
        let deadline = Instant::now() + PATIENCE;
        while pool.ready() != ready {
            assert!(Instant::now() < deadline, "{:?} are ready, and not {ready:?}", pool.ready());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_wanted_is_drawn_ahead_up_to_its_bound_and_replaced_when_it_is_taken() {
        let pool = pool(2);
        assert!(pool.take_image().is_none() && pool.take_slider().is_none(), "nothing is wanted yet");
        pool.want(Wanted { images: true, sliders: true });
        until_ready(&pool, (3, 2));
        let image = pool.take_image().unwrap();
        assert_eq!(image.text.len(), picture::LENGTH);
        assert!(image.image.starts_with("data:image/png;base64,iVBORw0KGgo"), "{}", image.image);
        assert!(pool.take_slider().is_some_and(|slider| slider.piece.starts_with("data:image/png;base64,")));
        until_ready(&pool, (3, 2));
        pool.want(Wanted { images: false, sliders: true });
        until_ready(&pool, (0, 2));
    }

    #[test]
    fn an_empty_pool_answers_at_once() {
        let pool = pool(0);
        pool.want(Wanted { images: true, sliders: true });
        for _ in 0..1_000 {
            assert!(pool.take_image().is_none() && pool.take_slider().is_none());
        }
        assert!(!pool.has(ChallengeKind::Image) && !pool.has(ChallengeKind::Slider) && pool.has(ChallengeKind::Work));
    }

    #[test]
    fn threads_end_with_their_pool() {
        let pool = pool(2);
        pool.want(Wanted { images: true, sliders: true });
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        let deadline = Instant::now() + PATIENCE;
        while shared.strong_count() > 0 {
            assert!(Instant::now() < deadline, "a thread draws on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
