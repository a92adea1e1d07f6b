//! Measures the challenges: how many are drawn a second, how often tesseract reads a picture, and how often a straight drag passes.
//!
//!     cargo run --release -p seckill-captcha --example measure -- FOLDER [PICTURES]
//!
//! The pictures are written to FOLDER for use by other programs. The file names contain the text or the place of the gap.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use seckill_captcha::{picture, slider};

type Failure = Box<dyn std::error::Error>;

/// How long drawing is timed.
const TIMED: Duration = Duration::from_secs(2);

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: measure FOLDER [PICTURES]")?;
    let count = arguments.next().map_or(Ok(500), |text| text.parse::<usize>())?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let mut rng = StdRng::seed_from_u64(1);

    let (rate, bytes) = timed(|| Ok(picture::draw(&mut rng)?.png.len()))?;
    println!("pictures: {rate:.0} a second, {bytes:.0} bytes each");
    let (rate, bytes) =
        timed(|| slider::draw(&mut rng).map(|slider| slider.image.len() + slider.piece.len()).map_err(Into::into))?;
    println!("sliders: {rate:.0} a second, {bytes:.0} bytes each");

    let mut texts = Vec::new();
    for n in 0..count {
        let picture = picture::draw(&mut rng)?;
        let file = folder.join(format!("{n:04}-{}.png", picture.text));
        std::fs::write(&file, picture.png)?;
        texts.push((file, picture.text));
    }
    for n in 0..count.min(50) {
        let slider = slider::draw(&mut rng)?;
        std::fs::write(folder.join(format!("slider-{n:02}-x{}-y{}.png", slider.x, slider.y)), slider.image)?;
        std::fs::write(folder.join(format!("slider-{n:02}-piece.png")), slider.piece)?;
    }
    read_by_tesseract(&texts)?;
    drag_straight(&mut rng);
    Ok(())
}

/// Repeats for `TIMED`. Returns the runs per second, and the mean of the results.
fn timed(mut draw: impl FnMut() -> Result<usize, Failure>) -> Result<(f64, f64), Failure> {
    let (began, mut times, mut sum) = (Instant::now(), 0.0, 0.0);
    while began.elapsed() < TIMED {
        sum += draw()? as f64;
        times += 1.0;
    }
    Ok((times / began.elapsed().as_secs_f64(), sum / times))
}

/// Lets tesseract read each picture in several ways, as an attacker would; one right reading is enough.
fn read_by_tesseract(pictures: &[(std::path::PathBuf, String)]) -> Result<(), Failure> {
    if Command::new("tesseract").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("tesseract: not installed (apt-get install tesseract-ocr)");
        return Ok(());
    }
    let (mut right, mut letters) = (0, 0);
    for (file, text) in pictures {
        let mut best = 0;
        // Page modes: a line, a word, a raw line. Only letters and digits, as in all pictures.
        for mode in ["7", "8", "13"] {
            let mut tesseract = Command::new("tesseract");
            tesseract.arg(file).args(["stdout", "--psm", mode, "--dpi", "150"]);
            tesseract.args(["-c", "tessedit_char_whitelist=ACEHJKLMNPTWXY347"]).stderr(Stdio::null());
            let read = String::from_utf8_lossy(&tesseract.output()?.stdout).trim().to_owned();
            best = best.max(text.chars().zip(read.chars()).filter(|(is, read)| is == read).count());
            if picture::judge(text, &read) {
                best = picture::LENGTH;
            }
        }
        right += usize::from(best == picture::LENGTH);
        letters += best;
    }
    let all = pictures.len();
    println!("tesseract: {right} of {all} pictures, {letters} of {} letters in their places", all * picture::LENGTH);
    Ok(())
}

/// Drags in a straight line into the gap: at one speed, and with pauses that vary slightly, as timers do.
fn drag_straight(rng: &mut impl Rng) {
    const DRAGS: usize = 10_000;
    for (name, late_ms) in [("at one speed", 0.0), ("with late timers", 3.0)] {
        let passed = (0..DRAGS).filter(|_| {
            let gap_x = rng.random_range(64..=250_u16);
            let mut at_ms = 0.0;
            let trail: Vec<slider::Sample> = (0..=40_u32)
                .map(|n| {
                    at_ms += 20.0 + rng.random_range(0.0..=late_ms);
                    [at_ms, f64::from(gap_x) * f64::from(n) / 40.0, 0.0]
                })
                .collect();
            slider::judge(gap_x, gap_x.into(), &trail).is_ok()
        });
        println!("straight drags {name}: {} of {DRAGS} pass", passed.count());
    }
    let blind = (0..DRAGS).filter(|_| {
        let [gap, guess] = [(); 2].map(|()| f64::from(rng.random_range(64..=250_u16)));
        (gap - guess).abs() <= slider::TOLERANCE
    });
    println!("blind guesses: {} of {DRAGS} hit the gap", blind.count());
}
