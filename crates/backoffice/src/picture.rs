//! Product pictures. From a given file, only two JPEGs are kept, drawn from its pixels. Nothing else of the file reaches a buyer: no
//! metadata, and no data hidden beside the picture.

use std::io::{Cursor, ErrorKind};
use std::time::Duration;

use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use seckill_domain::picture::Size;
use seckill_postgres::sales::products::NewPicture;
use seckill_runtime::low_priority;

pub const FILE_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Enough for pictures of cameras. Drawing a picture of this size takes about half a gigabyte of memory.
const PIXELS_MAX: u64 = 40_000_000;
const SIDE_MAX: u32 = 20_000;
const MEMORY_MAX: u64 = 256 * 1024 * 1024;
/// Programs write about ten scans. Each takes the time of a whole picture but may be a few bytes long: without a bound a small file
/// could take hours.
const SCANS_MAX: usize = 100;
/// The boxes for the two sizes, width and height. A picture is never enlarged.
const SMALL: (u32, u32) = (480, 960);
const LARGE: (u32, u32) = (1200, 2400);
const QUALITY: u8 = 82;
const LINE_MAX: Duration = Duration::from_secs(10);

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

pub fn draw(file: &[u8]) -> Result<NewPicture, PictureError> {
    let large = fitted(on_white(decode(file)?), LARGE);
    let small = fitted(large.clone(), SMALL);
    let (small, large) = (encode(&small)?, encode(&large)?);
    let mut hasher = blake3::Hasher::new();
    // The length separates the two pictures: without it, two different pairs could have the same bytes.
    hasher.update(&(small.1.len() as u64).to_be_bytes()).update(&small.1).update(&large.1);
    let hash = hasher.finalize().to_hex()[..32].to_owned();
    Ok(NewPicture { hash, small, large })
}

/// Pictures that one instance draws at the same time: each takes up to half a gigabyte of memory.
static DRAWING: Semaphore = Semaphore::const_new(1);

/// `draw` on a thread that gives way to all others, one picture at a time.
pub(crate) async fn draw_apart(file: Bytes) -> Result<NewPicture, PictureError> {
    let Ok(Ok(place)) = timeout(LINE_MAX, DRAWING.acquire()).await else { return Err(PictureError::Busy) };
    let (reply, drawn) = oneshot::channel();
    let work = move || {
        // The place is freed together with the memory, even if the caller has gone.
        let _place = place;
        // A caller that has gone needs no answer.
        _ = reply.send(draw(&file));
    };
    low_priority::spawn("picture".to_owned(), work).map_err(|_| PictureError::Busy)?;
    drawn.await.unwrap_or(Err(PictureError::Failed))
}

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
    // Checked by the header before any pixel is read: a few bytes may claim to be gigabytes.
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > PIXELS_MAX || decoder.total_bytes() > MEMORY_MAX {
        return Err(PictureError::TooLarge);
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Checks that a JPEG is complete, and that its number of scans is reasonable. The decoder would draw grey for missing data, and
/// accept any number of scans.
fn check_jpeg(file: &[u8]) -> Result<(), PictureError> {
    let mut rest = file.get(2..).unwrap_or_default();
    let mut scans = 0;
    loop {
        rest = match rest {
            // The end of the picture. The rest is ignored.
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

/// The bytes after a scan: they begin at the next marker that is not part of the data.
fn after_scan(data: &[u8]) -> Option<&[u8]> {
    let is_marker = |pair: &[u8]| pair[0] == 0xFF && !matches!(pair[1], 0x00 | 0xD0..=0xD7 | 0xFF);
    data.get(data.windows(2).position(is_marker)?..)
}

/// Checks that a WebP file has the length that its header states.
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
mod tests;
