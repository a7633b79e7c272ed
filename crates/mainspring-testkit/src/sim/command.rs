//! The simulator as a command: `cargo xtask sim`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::world::lock;
use super::{FAULTS, Kind, Run, races, run};
use crate::checker::Figures;

const HELP: &str = "\
Runs the engine in simulated time, with faults, and checks what comes of it.

Usage: cargo xtask sim [options]

  --seed <N>                one run; told as a story if it fails
  --seeds <A..B>            many runs, after those that ever failed (default: 0..200)
  --store <memory|sqlite>   (default: memory)
  --races <N>               instead: N nodes stopped past their lease that wake and write
  --trace                   tell the whole run as a story
  --threads <N>             (default: 2)
";

/// Where seeds that ever failed are kept.
const REGRESSIONS: &str = "seeds/regressions.txt";

/// Runs among which every kind of fault must have happened.
const MANY: usize = 100;

struct Options {
    kind: Kind,
    seeds: Range<u64>,
    single: bool,
    trace: bool,
    threads: usize,
    races: Option<usize>,
}

/// Runs the command; the program's exit code.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line speaks through its streams")]
pub fn main(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("error: {problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let clean = match options.races {
        Some(count) => {
            let races = races(options.kind, count, options.seeds.start);
            println!(
                "{} nodes stopped past their lease woke and wrote: {} refused, {} jobs ended once",
                races.forced, races.refused, races.once
            );
            races.refused == count && races.once == count
        }
        None if options.single => single(&options),
        None => many(&options),
    };
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options =
        Options { kind: Kind::Memory, seeds: 0..200, single: false, trace: false, threads: 2, races: None };
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        if flag == "--trace" {
            options.trace = true;
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("`{flag}` wants a value"))?;
        let number =
            |what: &str| value.parse::<u64>().map_err(|_| format!("{what}: `{value}` is not a number"));
        match flag.as_str() {
            "--seed" => {
                let seed = number("--seed")?;
                options.seeds = seed..seed.saturating_add(1);
                options.single = true;
            }
            "--seeds" => options.seeds = range(value).ok_or_else(|| format!("`{value}` is not A..B"))?,
            "--store" => {
                options.kind =
                    Kind::named(value).ok_or_else(|| format!("`{value}` is not a simulated store"))?;
            }
            "--threads" => options.threads = usize::try_from(number("--threads")?.max(1)).unwrap_or(1),
            "--races" => options.races = Some(usize::try_from(number("--races")?).unwrap_or(usize::MAX)),
            unknown => return Err(format!("unknown option `{unknown}`")),
        }
    }
    Ok(options)
}

fn range(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

/// One seed, twice: the same run must come of it.
#[expect(clippy::print_stdout, reason = "a command line speaks through its streams")]
fn single(options: &Options) -> bool {
    let seed = options.seeds.start;
    let watch = Stopwatch::start();
    let first = run(options.kind, seed);
    let took = watch.elapsed();
    if options.trace {
        first.tell().for_each(|line| println!("{line}"));
    }
    println!("{}", summary(&first.figures, first.simulated, took));
    for violation in &first.violations {
        println!("\n{violation}");
    }
    let (hash, again) = (first.hash(), run(options.kind, seed).hash());
    println!("\nhistory {hash:016x}, and {again:016x} when run again");
    hash == again && first.violations.is_empty()
}

/// Many seeds, on several threads.
#[expect(clippy::print_stdout, reason = "a command line speaks through its streams")]
fn many(options: &Options) -> bool {
    let mut seeds: VecDeque<u64> = regressions(options.kind).into();
    let old = seeds.len();
    seeds.extend(options.seeds.clone());
    let seeds = Mutex::new(seeds);
    let sum = Mutex::new((Figures::default(), Duration::ZERO, Vec::<Run>::new()));
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                loop {
                    let Some(seed) = lock(&seeds).pop_front() else { return };
                    let run = run(options.kind, seed);
                    let mut sum = lock(&sum);
                    sum.0.add(&run.figures);
                    sum.1 += run.simulated;
                    if !run.violations.is_empty() {
                        sum.2.push(run);
                    }
                }
            });
        }
    });
    let (figures, simulated, failed) = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{}", summary(&figures, simulated, watch.elapsed()));
    println!("  seeds that ever failed   {old}, run first");
    for run in &failed {
        println!("\nseed {} ({}):", run.seed, options.kind.name());
        for violation in run.violations.iter().take(3) {
            println!("{violation}");
        }
        println!("    again: cargo xtask sim --store {} --seed {} --trace", options.kind.name(), run.seed);
    }
    remember(options.kind, &failed);
    let missing: Vec<_> = FAULTS.iter().filter(|kind| !figures.faults.contains_key(**kind)).collect();
    // A few seeds need not have seen everything.
    let blind = figures.runs >= MANY && !missing.is_empty();
    if blind {
        println!("\nfaults that never happened: {missing:?}");
    }
    failed.is_empty() && !blind
}

fn summary(figures: &Figures, simulated: Duration, took: Duration) -> String {
    let mut text = String::new();
    let (simulated, took) = (simulated.as_secs_f64(), took.as_secs_f64());
    // Writing to a string does not fail.
    let _written = writeln!(
        text,
        "  simulated                {simulated:.0} s in {took:.1} s, {:.0} times as fast",
        simulated / took
    );
    text + &figures.to_string()
}

/// Seeds that failed before, on this store.
pub fn regressions(kind: Kind) -> Vec<u64> {
    let text = std::fs::read_to_string(root().join(REGRESSIONS)).unwrap_or_default();
    let line = |line: &str| {
        let (store, seed) = line.split('#').next()?.trim().split_once(' ')?;
        (store == kind.name()).then(|| seed.trim().parse().ok()).flatten()
    };
    text.lines().filter_map(line).collect()
}

/// Adds seeds to those that are run first from now on.
#[expect(clippy::print_stderr, reason = "a command line speaks through its streams")]
fn remember(kind: Kind, failed: &[Run]) {
    let known = regressions(kind);
    let mut text = String::new();
    for run in failed.iter().filter(|run| !known.contains(&run.seed)) {
        let rule = run.violations.first().map_or("", |violation| violation.rule);
        let _written = writeln!(text, "{} {} # {rule}", kind.name(), run.seed);
    }
    if text.is_empty() {
        return;
    }
    let path = root().join(REGRESSIONS);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if let Err(error) = std::fs::write(&path, before + &text) {
        eprintln!("error: {}: {error}", path.display());
    }
}

/// The repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// How long something takes in real time.
struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a person wants to see how long it took")]
    fn start() -> Self {
        Stopwatch(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "a person wants to see how long it took")]
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
