//! Draws challenges, and measures how often tesseract reads a picture.
//!
//!     cargo run --release -p seckill-captcha --example measure -- FOLDER [PICTURES]
//!
//! The pictures are written to FOLDER for use by other programs. The file names contain the text or the place of the gap.

use std::path::Path;
use std::process::Command;

use rand::SeedableRng;
use rand::rngs::StdRng;
use seckill_captcha::{picture, slider};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: measure FOLDER [PICTURES]")?;
    let count = arguments.next().map_or(Ok(500), |text| text.parse::<usize>())?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let mut rng = StdRng::seed_from_u64(1);
    for n in 0..count.min(50) {
        let slider = slider::draw(&mut rng)?;
        std::fs::write(folder.join(format!("slider-{n:02}-x{}-y{}.png", slider.x, slider.y)), slider.image)?;
        std::fs::write(folder.join(format!("slider-{n:02}-piece.png")), slider.piece)?;
    }
    let mut right = 0;
    for n in 0..count {
        let drawn = picture::draw(&mut rng)?;
        let file = folder.join(format!("{n:04}-{}.png", drawn.text));
        std::fs::write(&file, drawn.png)?;
        // Page modes: a line, a word, a raw line. One right reading is enough for an attacker.
        for mode in ["7", "8", "13"] {
            let mut tesseract = Command::new("tesseract");
            tesseract.arg(&file).args(["stdout", "--psm", mode, "--dpi", "150"]);
            tesseract.args(["-c", "tessedit_char_whitelist=ACEHJKLMNPTWXY347"]);
            if picture::judge(&drawn.text, &String::from_utf8_lossy(&tesseract.output()?.stdout)) {
                right += 1;
                break;
            }
        }
    }
    println!("tesseract: {right} of {count} pictures");
    Ok(())
}
