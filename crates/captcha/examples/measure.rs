//! Draws challenges, and measures how often tesseract reads a picture.
//!
//!     cargo run --release -p seckill-captcha --example measure -- FOLDER [PICTURES]
//!
//! The pictures are written to FOLDER for use by other programs. The file names contain the text or the place of the gap.

use std::path::Path;
use std::process::{Command, Stdio};

use rand::SeedableRng;
use rand::rngs::StdRng;
use seckill_captcha::{picture, slider};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: measure FOLDER [PICTURES]")?;
    let count = arguments.next().map_or(Ok(500), |text| text.parse::<usize>())?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let mut rng = StdRng::seed_from_u64(1);

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
    read_by_tesseract(&texts)
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
