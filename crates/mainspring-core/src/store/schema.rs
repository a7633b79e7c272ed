//! The fingerprint of a schema: whether two builds mean the same tables.
//!
//! A released migration never changes, but a development build may carry another text under the same version. A store keeps
//! the fingerprint of each migration that made it, and refuses to work on tables that it would misread.
//!
//! # Invariants
//! - Comments and white space do not count: a better explanation refuses nobody.

/// FNV-1a, 64 bits: its first value and its factor. It detects accidents; nobody attacks it.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);

/// Returns the fingerprint of one migration's statements, as 16 hexadecimal digits.
///
/// Comments are whole lines that begin with `--`, as the migrations have them.
pub fn fingerprint(migration: &str) -> String {
    let lines = migration.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    let mut hash = FNV.0;
    for word in lines.flat_map(str::split_whitespace) {
        for byte in word.bytes().chain([b' ']) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(FNV.1);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn comments_and_white_space_do_not_count_and_words_do() {
        let made = "-- Jobs.\njobs (\n    no   bigint\n);\n";
        assert_eq!(fingerprint(made), fingerprint("jobs (\n  -- Its number.\n  no bigint\n);"));
        assert_ne!(fingerprint(made), fingerprint("jobs (\n  number bigint\n);"));
        assert_ne!(fingerprint("a b"), fingerprint("ab"));
        assert_eq!(fingerprint("a"), "089c0207b5452844");
    }
}
