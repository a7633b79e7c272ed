//! Every link of a page leads somewhere: to a file or folder that is committed, and to a heading that is there.

use crate::tidy::Finding;

use super::page::Page;

/// What begins the target of a link.
const OPENINGS: [(&str, char); 3] = [("](", ')'), ("href=\"", '"'), ("src=\"", '"')];

/// `paths`: all files of the repository.
pub(super) fn check(page: &Page, pages: &[Page], paths: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in targets(&page.prose) {
        if let Some(complaint) = complaint(page, &target, pages, paths) {
            findings.push(page.finding(line, complaint));
        }
    }
    findings
}

/// All that is linked to, with the line on which the target begins.
fn targets(prose: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (opening, closing) in OPENINGS {
        for (at, _) in prose.match_indices(opening) {
            let begin = at + opening.len();
            let Some(length) = prose[begin..].find(closing) else { continue };
            // A title may follow the target.
            let target = prose[begin..begin + length].split_whitespace().next().unwrap_or_default();
            targets.push((line_of(prose, begin), target.to_owned()));
        }
    }
    for (index, line) in prose.lines().enumerate() {
        // `[name]: target`
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            targets.push((index + 1, target.trim().to_owned()));
        }
    }
    targets
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn complaint(page: &Page, target: &str, pages: &[Page], paths: &[String]) -> Option<String> {
    if target.is_empty() {
        return Some("a link leads nowhere".to_owned());
    }
    if target.starts_with("https://") || target.starts_with("mailto:") {
        return None;
    }
    if target.contains("://") {
        return Some(format!("`{target}` is neither a file nor `https:`"));
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let Some(path) = resolved(&page.path, path) else {
        return Some(format!("`{target}` is outside of the repository"));
    };
    let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
    if !paths.iter().any(|known| *known == path || known.starts_with(&folder)) {
        return Some(format!("`{target}` does not exist"));
    }
    let anchor = anchor?;
    match pages.iter().find(|page| page.path == path) {
        Some(page) if page.anchors.contains(anchor) => None,
        Some(_) => Some(format!("`{path}` has no heading `#{anchor}`")),
        None => Some(format!("`{target}`: only pages have headings")),
    }
}

/// A path relative to the root; `None` if it leaves it.
fn resolved(from: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a page `docs/a.md` beside `docs/b.md`, which has the heading `Here`.
    fn complaints(text: &str) -> Vec<String> {
        let pages = [Page::new("docs/a.md", text), Page::new("docs/b.md", "# Here\n")];
        let paths = ["README.md", "docs/a.md", "docs/b.md", "docs/adr/1.md", "src/lib.rs"].map(String::from);
        check(&pages[0], &pages, &paths).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let text = "# Top\n[b](b.md) [b](b.md#here) [top](#top) [readme](../README.md \"title\") ![i](../src/lib.rs)\n\
            [adr](adr) [adr](adr/) [root](..) [w](https://example.org/x#y) <a href=\"b.md\">\n[two\nlines](b.md)\n\n[r]: b.md\n";
        assert_eq!(complaints(text), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found_with_their_line() {
        assert_eq!(complaints("x\n[c](c.md)"), ["docs/a.md:2: `c.md` does not exist"]);
        assert_eq!(complaints("[b](b.md#there)"), ["docs/a.md:1: `docs/b.md` has no heading `#there`"]);
        assert_eq!(complaints("[a](#there)"), ["docs/a.md:1: `docs/a.md` has no heading `#there`"]);
        assert_eq!(complaints("[x](../../x)"), ["docs/a.md:1: `../../x` is outside of the repository"]);
        assert_eq!(complaints("[x]()"), ["docs/a.md:1: a link leads nowhere"]);
        assert_eq!(
            complaints("[x](../src/lib.rs#L1)"),
            ["docs/a.md:1: `../src/lib.rs#L1`: only pages have headings"]
        );
        assert_eq!(complaints("[x](ftp://y)"), ["docs/a.md:1: `ftp://y` is neither a file nor `https:`"]);
        assert_eq!(complaints("[r]: c.md\n"), ["docs/a.md:1: `c.md` does not exist"]);
        assert_eq!(complaints("the\n<img src=\"no.svg\">"), ["docs/a.md:2: `no.svg` does not exist"]);
    }
}
