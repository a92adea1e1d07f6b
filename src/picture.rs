//! Product pictures. Whatever file is given, what is kept are two JPEGs that were drawn anew from its pixels: nothing else of the
//! file reaches a buyer, neither its metadata nor what may hide beside the picture.

use std::io::{Cursor, ErrorKind};
use std::time::Duration;

use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::domain::picture::Size;
use crate::ledger::sales::products::NewPicture;
use crate::low_priority;

/// The longest file.
pub const FILE_BYTES_MAX: usize = 10 * 1024 * 1024;
/// What cameras make, with room to spare: drawing a picture of this size takes about half a gigabyte of memory.
const PIXELS_MAX: u64 = 40_000_000;
const SIDE_MAX: u32 = 20_000;
const MEMORY_MAX: u64 = 256 * 1024 * 1024;
/// Programs write about ten scans. Each takes the time of a whole picture and may be a few bytes long, so without a bound a small
/// file would take hours.
const SCANS_MAX: usize = 100;
/// The boxes that the two sizes fit into, width and height. A picture is never enlarged.
const SMALL: (u32, u32) = (480, 960);
const LARGE: (u32, u32) = (1200, 2400);
const QUALITY: u8 = 82;
/// How long a picture waits for the one before it.
const LINE_MAX: Duration = Duration::from_secs(10);

/// Why a file is refused as a picture.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    #[error("the file is longer than 10 MiB")]
    TooLong,
    #[error("the file is not a JPEG, PNG or WebP picture")]
    NotAPicture,
    #[error("the picture is too large: it may have 40 megapixels, 20000 pixels on each side, and 256 MiB of pixels")]
    TooLarge,
    #[error("the picture ends too early: its file was cut off")]
    CutOff,
    #[error("the picture cannot be read: {0}")]
    Broken(String),
    #[error("the picture cannot be read: its decoder has failed")]
    Failed,
    #[error("another picture is being drawn")]
    Busy,
}

impl From<ImageError> for PictureError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Limits(_) => Self::TooLarge,
            ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Self::CutOff,
            error => Self::Broken(error.to_string()),
        }
    }
}

/// Draws the two sizes of a picture from a file. This takes seconds for a large picture.
///
/// # Errors
/// The file is no picture, or is too large, cut off or broken.
pub fn draw(file: &[u8]) -> Result<NewPicture, PictureError> {
    let large = fitted(on_white(decode(file)?), LARGE);
    let small = fitted(large.clone(), SMALL);
    let (small, large) = (encode(&small)?, encode(&large)?);
    let mut hasher = blake3::Hasher::new();
    // The length keeps two different pairs from having the same bytes.
    hasher.update(&(small.1.len() as u64).to_be_bytes()).update(&small.1).update(&large.1);
    let hash = hasher.finalize().to_hex()[..32].to_owned();
    Ok(NewPicture { hash, small, large })
}

/// Pictures of one instance that are drawn at the same time: each takes up to half a gigabyte of memory.
static DRAWING: Semaphore = Semaphore::const_new(1);

/// Draws likewise, on a thread that gives way to all others, one picture at a time.
///
/// # Errors
/// Also `Busy`, if another picture is drawn for long, and `Failed` if the decoder has failed.
pub async fn draw_apart(file: Bytes) -> Result<NewPicture, PictureError> {
    let Ok(Ok(place)) = timeout(LINE_MAX, DRAWING.acquire()).await else { return Err(PictureError::Busy) };
    let (reply, drawn) = oneshot::channel();
    let work = move || {
        // The place is free when the memory is, also if the caller has gone.
        let _place = place;
        // A caller that has gone needs no answer.
        _ = reply.send(draw(&file));
    };
    low_priority::spawn("picture".to_owned(), work).map_err(|_| PictureError::Busy)?;
    drawn.await.unwrap_or(Err(PictureError::Failed))
}

/// The pixels of a picture, turned as its metadata asks.
fn decode(file: &[u8]) -> Result<DynamicImage, PictureError> {
    if file.len() > FILE_BYTES_MAX {
        return Err(PictureError::TooLong);
    }
    let format = image::guess_format(file).map_err(|_| PictureError::NotAPicture)?;
    match format {
        ImageFormat::Jpeg => check_jpeg(file)?,
        ImageFormat::WebP => check_webp(file)?,
        ImageFormat::Png => {}
        _ => return Err(PictureError::NotAPicture),
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(MEMORY_MAX);
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    // By its header, before any pixel is read: a few bytes may claim to be gigabytes.
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > PIXELS_MAX || decoder.total_bytes() > MEMORY_MAX {
        return Err(PictureError::TooLarge);
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Checks that a JPEG goes on to its end, and has a reasonable number of scans. The decoder would draw grey where the file was cut
/// off, and take any number of scans.
fn check_jpeg(file: &[u8]) -> Result<(), PictureError> {
    let mut rest = file.get(2..).unwrap_or_default();
    let mut scans = 0;
    loop {
        rest = match rest {
            // The end of the picture. What follows is not looked at.
            [0xFF, 0xD9, ..] => return Ok(()),
            // Markers without a length.
            [0xFF, 0x01 | 0xD0..=0xD8, after @ ..] => after,
            [0xFF, marker, high, low, ..] if *marker != 0xFF => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                let after = rest.get(2 + length..).ok_or(PictureError::CutOff)?;
                if *marker == 0xDA {
                    scans += 1;
                    after_scan(after).ok_or(PictureError::CutOff)?
                } else {
                    after
                }
            }
            // Bytes that fill the space between markers.
            [_, after @ ..] => after,
            [] => return Err(PictureError::CutOff),
        };
        if scans > SCANS_MAX {
            return Err(PictureError::Broken(format!("it has more than {SCANS_MAX} scans")));
        }
    }
}

/// What follows the data of a scan: the next marker that is not part of the data.
fn after_scan(data: &[u8]) -> Option<&[u8]> {
    let is_marker = |pair: &[u8]| pair[0] == 0xFF && !matches!(pair[1], 0x00 | 0xD0..=0xD7 | 0xFF);
    data.get(data.windows(2).position(is_marker)?..)
}

/// Checks that a WebP file is as long as it says.
fn check_webp(file: &[u8]) -> Result<(), PictureError> {
    match file {
        [_, _, _, _, a, b, c, d, rest @ ..] if rest.len() as u64 >= u64::from(u32::from_le_bytes([*a, *b, *c, *d])) => {
            Ok(())
        }
        _ => Err(PictureError::CutOff),
    }
}

/// The picture without transparency, which JPEG does not have: white shows through.
fn on_white(picture: DynamicImage) -> DynamicImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8().into();
    }
    let picture = picture.into_rgba8();
    let (width, height) = picture.dimensions();
    let mut flat = RgbImage::new(width, height);
    for (to, from) in flat.pixels_mut().zip(picture.pixels()) {
        let [red, green, blue, alpha] = from.0.map(u16::from);
        // At most 65152, so that it fits.
        let mixed = |colour: u16| (colour * alpha + 255 * (255 - alpha) + 127) / 255;
        to.0 = [red, green, blue].map(|colour| u8::try_from(mixed(colour)).unwrap_or(u8::MAX));
    }
    flat.into()
}

/// The picture, made smaller where it does not fit into the box.
fn fitted(picture: DynamicImage, (width, height): (u32, u32)) -> DynamicImage {
    if picture.width() <= width && picture.height() <= height {
        return picture;
    }
    picture.resize(width, height, FilterType::Lanczos3)
}

fn encode(picture: &DynamicImage) -> Result<(Size, Vec<u8>), PictureError> {
    let mut bytes = Vec::new();
    picture.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, QUALITY))?;
    Ok((Size { width: picture.width(), height: picture.height() }, bytes))
}

#[cfg(test)]
mod tests {
    use image::{Rgb, Rgba, RgbaImage};

    use super::*;

    const RED: Rgb<u8> = Rgb([220, 30, 30]);
    const BLUE: Rgb<u8> = Rgb([30, 30, 220]);

    fn plain(width: u32, height: u32, colour: Rgb<u8>) -> DynamicImage {
        RgbImage::from_pixel(width, height, colour).into()
    }

    fn file(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        picture.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    /// What a browser would draw.
    fn shown(jpeg: &[u8]) -> RgbImage {
        image::load_from_memory_with_format(jpeg, ImageFormat::Jpeg).unwrap().into_rgb8()
    }

    fn is_about(found: &Rgb<u8>, wanted: Rgb<u8>) -> bool {
        found.0.iter().zip(wanted.0).all(|(a, b)| a.abs_diff(b) < 12)
    }

    fn size(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    /// A PNG chunk, with its checksum.
    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let body = [&kind[..], data].concat();
        let checksum = body.iter().fold(u32::MAX, |mut sum, byte| {
            sum ^= u32::from(*byte);
            for _ in 0..8 {
                sum = if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
            }
            sum
        });
        [&(data.len() as u32).to_be_bytes()[..], &body, &(!checksum).to_be_bytes()].concat()
    }

    /// A PNG whose head claims a size, with this many bytes of data.
    fn claimed(width: u32, height: u32, depth: u8, data: usize) -> Vec<u8> {
        let colour = 6; // RGBA
        let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, colour, 0, 0, 0]].concat();
        let data = chunk(b"IDAT", &vec![0; data]);
        [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &head), &data, &chunk(b"IEND", &[])].concat()
    }

    #[test]
    fn each_format_is_drawn_in_two_sizes_and_never_enlarged() {
        let picture = plain(2000, 1000, RED);
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP] {
            let drawn = draw(&file(&picture, format)).unwrap();
            assert_eq!((drawn.small.0, drawn.large.0), (size(480, 240), size(1200, 600)), "{format:?}");
            for (size, jpeg) in [drawn.small, drawn.large] {
                let shown = shown(&jpeg);
                assert_eq!(shown.dimensions(), (size.width, size.height));
                assert!(shown.pixels().all(|pixel| is_about(pixel, RED)), "{format:?}");
            }
        }
        let drawn = draw(&file(&plain(300, 20, RED), ImageFormat::Png)).unwrap();
        assert_eq!((drawn.small.0, drawn.large.0), (size(300, 20), size(300, 20)));
        let tall = draw(&file(&plain(100, 5000, RED), ImageFormat::Png)).unwrap();
        assert_eq!((tall.small.0, tall.large.0), (size(19, 960), size(48, 2400)));
    }

    #[test]
    fn the_same_file_has_the_same_name_and_another_one_another() {
        let name = |colour| draw(&file(&plain(600, 400, colour), ImageFormat::Png)).unwrap().hash;
        assert_eq!(name(RED), name(RED));
        assert_ne!(name(RED), name(BLUE));
        assert!(name(RED).len() == 32 && name(RED).bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[test]
    fn transparent_parts_are_white_whatever_colour_they_hide() {
        let mut picture = RgbaImage::from_pixel(64, 64, Rgba([0, 0, 0, 0]));
        for y in 0..64 {
            for x in 32..64 {
                picture.put_pixel(x, y, Rgba([30, 30, 220, 255]));
            }
        }
        let drawn = draw(&file(&picture.into(), ImageFormat::Png)).unwrap();
        let shown = shown(&drawn.large.1);
        assert!(is_about(shown.get_pixel(8, 32), Rgb([255; 3])) && is_about(shown.get_pixel(56, 32), BLUE));
    }

    #[test]
    fn a_camera_s_turn_is_applied_and_its_notes_are_dropped() {
        let jpeg = file(&plain(200, 100, RED), ImageFormat::Jpeg);
        // Exif, big-endian: one entry, orientation 6 (a quarter turn), then a place that nobody shall learn.
        let exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0GPS 51.5N 0.1W";
        let length = (exif.len() as u16 + 2).to_be_bytes();
        let turned = [&jpeg[..2], &[0xFF, 0xE1], &length, exif, &jpeg[2..]].concat();
        let drawn = draw(&turned).unwrap();
        assert_eq!(drawn.large.0, size(100, 200));
        for jpeg in [drawn.small.1, drawn.large.1] {
            assert!(!jpeg.windows(3).any(|bytes| bytes == b"GPS" || bytes == b"Exi"));
        }
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let gif = b"GIF89a\x01\0\x01\0\0\0\0;".to_vec();
        let svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>".to_vec();
        for (name, bytes) in [("nothing", Vec::new()), ("text", b"hello".to_vec()), ("GIF", gif), ("SVG", svg)] {
            assert!(matches!(draw(&bytes), Err(PictureError::NotAPicture)), "{name}");
        }
        assert!(matches!(draw(&vec![0xFF; FILE_BYTES_MAX + 1]), Err(PictureError::TooLong)));
        for head in [&b"\xff\xd8\xff\xe0"[..], b"\x89PNG\r\n\x1a\n", b"RIFF\x04\0\0\0WEBP"] {
            assert!(draw(&[head, &[7; 100]].concat()).is_err(), "{head:?}");
        }
    }

    #[test]
    fn a_few_bytes_that_claim_gigabytes_are_refused_by_their_head() {
        for bomb in [
            claimed(30_000, 30_000, 8, 100),
            claimed(1, 20_001, 8, 100),
            claimed(u32::MAX >> 1, 1, 8, 100),
            claimed(8_000, 5_001, 8, 100),
            // Few enough pixels, of eight bytes each.
            claimed(6_300, 6_300, 16, 100),
        ] {
            assert!(matches!(draw(&bomb), Err(PictureError::TooLarge)), "{:?}", draw(&bomb).err());
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused_wherever_it_was_cut() {
        let mut noise = RgbImage::new(160, 120);
        for (n, pixel) in noise.pixels_mut().enumerate() {
            pixel.0 = [(n * 7) as u8, (n * 13) as u8, (n * 31) as u8];
        }
        let noise = noise.into();
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP] {
            let whole = file(&noise, format);
            assert!(draw(&whole).is_ok());
            for tenth in 1..10 {
                let cut = &whole[..whole.len() * tenth / 10];
                assert!(draw(cut).is_err(), "{format:?} cut at {tenth} tenths");
            }
        }
    }

    #[test]
    fn a_jpeg_with_very_many_scans_is_refused() {
        let jpeg = file(&plain(16, 16, RED), ImageFormat::Jpeg);
        let scan = jpeg.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        let (head, scan) = (&jpeg[..scan], &jpeg[scan..jpeg.len() - 2]);
        let many = [head, &scan.repeat(SCANS_MAX + 1), &[0xFF, 0xD9]].concat();
        let refused = draw(&many).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains("scans")), "{refused:?}");
    }

    #[test]
    fn nothing_but_the_pixels_of_a_file_with_two_faces_is_kept() {
        let page = b"<html><script>alert(document.cookie)</script></html>PK\x03\x04";
        let jpeg = file(&plain(80, 60, RED), ImageFormat::Jpeg);
        let length = (page.len() as u16 + 2).to_be_bytes();
        // As a comment inside, and behind the end.
        let jpeg = [&jpeg[..2], &[0xFF, 0xFE], &length, page, &jpeg[2..], page].concat();
        let png = file(&plain(80, 60, RED), ImageFormat::Png);
        let text = chunk(b"tEXt", &[b"Comment\0", &page[..]].concat());
        let png = [&png[..33], &text, &png[33..], page].concat();
        for two_faced in [jpeg, png] {
            let drawn = draw(&two_faced).unwrap();
            for bytes in [drawn.small.1, drawn.large.1] {
                assert!(bytes.starts_with(&[0xFF, 0xD8]) && bytes.ends_with(&[0xFF, 0xD9]));
                assert!(!bytes.windows(6).any(|part| part == b"script"));
            }
        }
    }

    #[test]
    fn of_a_moving_picture_the_first_frame_is_kept() {
        // The data of a still picture, as a frame: its chunk follows the twelve bytes of the file's head.
        let still = |colour| file(&plain(64, 48, colour), ImageFormat::WebP)[12..].to_vec();
        let u24 = |n: u32| n.to_le_bytes()[..3].to_vec();
        let chunk = |kind: &[u8; 4], data: Vec<u8>| {
            let odd = data.len() % 2;
            [&kind[..], &(data.len() as u32).to_le_bytes(), &data, &[0][..odd]].concat()
        };
        let frame = |colour| {
            let place = [u24(0), u24(0), u24(63), u24(47), u24(100), vec![0]].concat();
            chunk(b"ANMF", [place, still(colour)].concat())
        };
        let canvas = [vec![2, 0, 0, 0], u24(63), u24(47)].concat();
        let body =
            [b"WEBP".to_vec(), chunk(b"VP8X", canvas), chunk(b"ANIM", vec![0; 6]), frame(RED), frame(BLUE)].concat();
        let moving = [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat();
        let drawn = draw(&moving).unwrap();
        assert!(shown(&drawn.large.1).pixels().all(|pixel| is_about(pixel, RED)));
    }
}
