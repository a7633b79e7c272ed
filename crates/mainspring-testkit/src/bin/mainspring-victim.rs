//! A program made to be killed; see [`mainspring_testkit::torture::victim`].

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The smaller rig tells its workers three things.
    if arguments.len() == 3 {
        return mainspring_testkit::victim::run(&arguments);
    }
    mainspring_testkit::torture::victim::run(&arguments)
}
