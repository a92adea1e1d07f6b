//! Sales: reads, shards, waves, and many sales beside each other.

pub mod changed_sales;
pub mod idle_sales;
pub mod sale_reads;
pub mod sales_apart;
pub mod shards;
pub mod stock_waves;
