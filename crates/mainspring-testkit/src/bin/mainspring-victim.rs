//! A program made to be killed; see [`mainspring_testkit::torture::victim`].

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    mainspring_testkit::torture::victim::run(&arguments)
}
