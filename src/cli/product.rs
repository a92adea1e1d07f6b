//! `product`: creates and changes products.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::arguments::ListArgs;
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_backoffice::picture::{self, FILE_BYTES_MAX};
use seckill_buying::sale_work::manage::{ProductEdited, ProductSet};
use seckill_config::Config;
use seckill_domain::sale::{Product, ProductChange, ProductEdit, product_name};
use seckill_postgres::sales::products::NewPicture;

#[derive(Subcommand)]
pub(super) enum ProductCommand {
    /// Create a product, or change the given parts of it; returns when every instance that is ready knows the change
    Set(SetArgs),
    /// Show products, by name
    List(ListArgs),
    /// Rename a product; the pages of its sales show the new name at once
    Rename {
        /// Product name
        name: String,
        /// Its new name
        to: String,
    },
    /// Remove a product that no sale has
    Remove {
        /// Product name
        name: String,
    },
    /// Remove a product's picture
    RemovePicture {
        /// Product name
        name: String,
    },
}

#[derive(clap::Args)]
pub(super) struct SetArgs {
    /// Product name
    #[arg(long)]
    name: String,
    /// What buyers are told of it, at most 5000 characters
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// A picture: a JPEG, PNG or WebP file of at most 10 MiB and 40 megapixels. It is redrawn in two sizes
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// A description of the picture, for people who cannot see it; without it, a new picture is described by the product's name
    #[arg(long, value_name = "TEXT")]
    alt: Option<String>,
}

impl ProductCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        match self {
            Self::Set(args) => set(config, args).await,
            Self::List(list) => {
                let sales = stores(config)?.ledger.sales;
                let next = async |last: Option<Product>, n| {
                    sales.products(last.as_ref().map(|last| last.name.as_str()), None, n).await
                };
                print::pages(&list, next, product_row).await
            }
            Self::Rename { name, to } => edit(config, name, ProductEdit::Rename(product_name(&to, "name")?)).await,
            Self::Remove { name } => edit(config, name, ProductEdit::Remove).await,
            Self::RemovePicture { name } => edit(config, name, ProductEdit::RemovePicture).await,
        }
    }
}

fn product_row(of: Product) -> Row<4> {
    Row([
        ("id", of.id.into()),
        ("name", of.name.into()),
        ("picture", of.picture.map(|picture| picture.hash).into()),
        ("description", of.description.into()),
    ])
}

async fn edit(config: &Config, name: String, edit: ProductEdit) -> anyhow::Result<()> {
    let name = product_name(&name, "name")?;
    match stores(config)?.edit_product(&name, &edit, ACTOR).await? {
        ProductEdited::Unknown => bail!("there is no product {name:?}"),
        ProductEdited::Refused(why) => bail!("product {name:?} is not changed: {why}"),
        ProductEdited::Done { id, known_everywhere } => {
            if !known_everywhere {
                tracing::warn!(product = id, "changed, but a live instance has not confirmed that it knows the change");
            }
            tracing::info!(product = id, "changed");
            Ok(())
        }
    }
}

async fn set(config: &Config, SetArgs { name, description, picture, alt }: SetArgs) -> anyhow::Result<()> {
    let mut change = ProductChange { name, description, picture: None, alt }.check()?;
    let picture = match picture {
        Some(file) => Some(drawn(&file).await.with_context(|| file.display().to_string())?),
        None => None,
    };
    if let Some(picture) = &picture {
        change.picture = Some(picture.hash.clone());
        // An old text would describe the old picture.
        change.alt.get_or_insert(change.name.clone());
    }
    match stores(config)?.set_product(&change, picture.as_ref(), ACTOR).await? {
        ProductSet::NoPicture => bail!("product {:?} has no picture that --alt could describe", change.name),
        ProductSet::Done { id, known_everywhere } => {
            if !known_everywhere {
                tracing::warn!(product = id, "changed, but a live instance has not confirmed that it knows the change");
            }
            print::json(&json!({ "product_id": id, "picture": change.picture }))
        }
    }
}

async fn drawn(path: &Path) -> anyhow::Result<NewPicture> {
    let mut file = Vec::new();
    // One byte more than is taken, so that a longer file is noticed, and never read as a whole.
    File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut file)?;
    let drawing = tokio::task::spawn_blocking(move || picture::draw(&file)).await;
    Ok(drawing.context("the picture cannot be read: its decoder has failed")??)
}
