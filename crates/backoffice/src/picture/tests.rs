//! Files of all kinds, and their results.

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

fn shown(jpeg: &[u8]) -> RgbImage {
    image::load_from_memory_with_format(jpeg, ImageFormat::Jpeg).unwrap().into_rgb8()
}

fn is_about(found: &Rgb<u8>, wanted: Rgb<u8>) -> bool {
    found.0.iter().zip(wanted.0).all(|(a, b)| a.abs_diff(b) < 12)
}

fn size(width: u32, height: u32) -> Size {
    Size { width, height }
}

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
    // Exif, big-endian: one entry, orientation 6 (a quarter turn), then a place name, which must not be published.
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
        // Few enough pixels, but of eight bytes each.
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
    // Once as a comment inside the file, and once after its end.
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
