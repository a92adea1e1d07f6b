//! Pictures of products: their names, sizes and addresses.

use serde::{Deserialize, Serialize};

/// A product's picture in two sizes. A hash never names another picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    pub hash: String,
    /// A description, for people who cannot see the picture.
    pub alt: String,
    pub small: Size,
    pub large: Size,
}

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

/// One size of a picture, as its address names it: `HASH-WIDTH.jpg`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PictureFile {
    hash: String,
    width: i32,
}

impl Picture {
    /// The files of the picture; one, if the picture is no wider than the small size.
    pub fn files(&self) -> Vec<PictureFile> {
        let mut files: Vec<_> = [self.small, self.large].map(|size| PictureFile::new(&self.hash, size)).into();
        files.dedup();
        files
    }

    pub fn small_path(&self) -> String {
        PictureFile::new(&self.hash, self.small).path()
    }

    pub fn large_path(&self) -> String {
        PictureFile::new(&self.hash, self.large).path()
    }
}

impl PictureFile {
    /// No size is wider than this.
    const WIDTH_MAX: i32 = 1200;

    fn new(hash: &str, size: Size) -> Self {
        Self { hash: hash.to_owned(), width: size.width.cast_signed() }
    }

    /// `None` when no picture has this name. A picture has one name only: `-0480.jpg` is none.
    pub fn parse(name: &str) -> Option<Self> {
        let (hash, width) = name.strip_suffix(".jpg")?.split_once('-')?;
        let is_hash = hash.len() == 32 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_number = width.bytes().all(|b| b.is_ascii_digit()) && !width.starts_with('0');
        let width = width.parse().ok().filter(|width| (1..=Self::WIDTH_MAX).contains(width))?;
        (is_hash && is_number).then(|| Self { hash: hash.to_owned(), width })
    }

    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn width(&self) -> i32 {
        self.width
    }

    /// The address, on the server of the pages.
    pub fn path(&self) -> String {
        format!("/pictures/{}-{}.jpg", self.hash, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_name() {
        let hash = "0123456789abcdef0123456789abcdef";
        let file = PictureFile::parse(&format!("{hash}-480.jpg")).unwrap();
        assert_eq!((file.hash(), file.width()), (hash, 480));
        assert_eq!(file.path(), format!("/pictures/{hash}-480.jpg"));
        for wrong in
            ["-480", "-480.png", "-0480.jpg", "-+480.jpg", "-0.jpg", "-1201.jpg", "-.jpg", "480.jpg", "-480.jpg.jpg"]
        {
            assert_eq!(PictureFile::parse(&format!("{hash}{wrong}")), None, "{wrong}");
        }
        for wrong in
            ["0123-480.jpg".to_owned(), format!("{}-480.jpg", hash.to_uppercase()), format!("../{hash}-480.jpg")]
        {
            assert_eq!(PictureFile::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_narrow_picture_is_one_file() {
        let size = |width| Size { width, height: 100 };
        let picture =
            |small, large| Picture { hash: "0".repeat(32), alt: String::new(), small: size(small), large: size(large) };
        assert_eq!(picture(300, 300).files().len(), 1);
        assert_eq!(picture(480, 1200).files().len(), 2);
    }
}
