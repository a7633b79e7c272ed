//! One temporary PostgreSQL for a whole run of tests.
//!
//! Without arguments it prints the server's address and keeps it until its standard input ends. With a command it runs
//! that with [`SERVER_VARIABLE`] set, and ends as it does: `mainspring-temp-postgres cargo nextest run`. With `--check`
//! it only says whether the programs that tests need are installed.
#![expect(clippy::print_stdout, reason = "a command line speaks through its streams")]

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, ExitCode};

use mainspring_testkit::postgres::{Options, SERVER_VARIABLE, Server, available};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--check"] {
        available()?;
        return Ok(ExitCode::SUCCESS);
    }
    let server = Server::start(&Options::new())?;
    let address = server.url("postgres");
    let Some((program, arguments)) = arguments.split_first() else {
        println!("{address}");
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(ExitCode::SUCCESS);
    };
    let status = Command::new(program).args(arguments).env(SERVER_VARIABLE, address).status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
