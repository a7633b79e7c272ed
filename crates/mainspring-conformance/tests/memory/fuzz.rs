//! The core's fuzz targets on their corpora and on random inputs.

use mainspring_conformance::fuzz::{self, check};

/// One `#[test]` per target, and none without one.
macro_rules! targets {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let name = stringify!($name);
                check(name, fuzz::TARGETS.iter().find(|target| target.0 == name).expect("a target").1);
            }
        )*

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.0).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! {
    names,
    ids,
    times,
    spans,
    backoffs,
    outcomes,
    keys,
    options,
    jobs,
    codes,
    rules,
}
