//! The live view: store and nodes, counts, jobs, events, keys.

use mainspring::admin::{Node, NodeState, Progress, Summary};
use mainspring::time::Timestamp;
use mainspring::{Reason, State};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Paragraph, Row, Sparkline, Table};

use super::event::{Event, Tone};
use super::session::Session;
use super::watch;
use super::worker::LEASE;
use crate::command::jobs;
use crate::text;

/// Nodes that have a line in the header.
const NODES: usize = 3;
/// Columns from which on there is room for whole ids.
const WIDE: u16 = 110;

pub(super) fn draw(frame: &mut Frame<'_>, session: &Session<'_>) {
    let area = frame.area();
    let nodes = nodes(session);
    let events = (area.height / 3).clamp(4, 14);
    let header = u16::try_from(nodes.len()).unwrap_or(1) + 1;
    let [top, numbers, table, log, keys] = Layout::vertical([
        Constraint::Length(header),
        Constraint::Length(3),
        Constraint::Min(4),
        Constraint::Length(events),
        Constraint::Length(1),
    ])
    .areas(area);
    let mut lines = vec![title(session)];
    lines.extend(nodes);
    frame.render_widget(Paragraph::new(lines), top);
    draw_numbers(frame, numbers, session);
    draw_jobs(frame, table, session);
    draw_events(frame, log, session);
    frame.render_widget(footer(session), keys);
}

/// A frame around a part, in the background.
fn frame_of(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().dark_gray())
        .title(title.bold())
}

fn title(session: &Session<'_>) -> Line<'static> {
    let store = session.engine.describe();
    let durable = if store.durable { "durable" } else { "not durable" };
    Line::from(vec![
        Span::from(" Mainspring ").bold().black().on_cyan(),
        Span::from(if session.only_looks() { " watch  " } else { " dev  " }),
        Span::from(text::line(&store.location, 60)).bold(),
        Span::from(format!("  {} {}, {durable}", store.backend, text::line(&store.version, 20))).dark_gray(),
    ])
}

/// A line per live node, or one that says that there is none.
fn nodes(session: &Session<'_>) -> Vec<Line<'static>> {
    let watch = &session.watch;
    let live = watch.nodes.iter().filter(|node| node.state == NodeState::Live);
    let mut lines: Vec<_> = live
        .filter(|node| node.pid != session.pid || session.worker.is_some())
        .take(NODES)
        .map(|node| node_line(node, watch.now))
        .collect();
    if let Some(restart) = session.restart {
        let left = restart.saturating_sub(session.engine.seams().clock.monotonic());
        let text = format!(" ✖ the worker is dead, restart in {}", text::duration(left));
        lines.push(Line::from(text).red().bold());
    } else if lines.is_empty() && session.only_looks() {
        lines.push(Line::from(" ○ no node is live: nobody runs jobs").yellow());
    } else if lines.is_empty() {
        lines.push(Line::from(" ○ the worker is starting").yellow());
    }
    if let Some(recovery) = &watch.recovery {
        let text = format!(" ↻ {} of {} jobs of the dead worker are back", recovery.back(), recovery.jobs);
        lines.push(Line::from(text).magenta().bold());
    }
    lines
}

fn node_line(node: &Node, now: Timestamp) -> Line<'static> {
    let left = node.lease_until.since(now);
    // Its own lease is not among what a store tells, so the bar is drawn for that of our worker.
    let fraction = left.as_secs_f64() / LEASE.as_secs_f64();
    let (mark, color) = if left.is_zero() { (" ◌ ", Color::Red) } else { (" ● ", Color::Green) };
    Line::from(vec![
        Span::from(mark).fg(color),
        Span::from(text::line(&node.name, 50)).bold(),
        Span::from(format!(
            "  pid {}  {}  ",
            node.pid,
            text::count(usize::try_from(node.claims).unwrap_or(0), "job")
        )),
        Span::from("lease ").dark_gray(),
        Span::from(bar(fraction, 10)).fg(color),
        Span::from(format!(" {}", text::duration(left))),
    ])
}

/// A bar of blocks.
fn bar(fraction: f64, width: usize) -> String {
    let filled = (0..width).filter(|n| *n as f64 + 0.5 <= fraction * width as f64).count();
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

fn color(state: State) -> Color {
    match state {
        State::Ready => Color::Cyan,
        State::Scheduled => Color::Blue,
        State::Running => Color::Yellow,
        State::Succeeded => Color::Green,
        State::Failed => Color::Red,
        State::Suspended | State::Cancelled => Color::Magenta,
        State::Blocked | State::Skipped => Color::Gray,
    }
}

const COUNTED: [State; 7] = [
    State::Ready,
    State::Scheduled,
    State::Running,
    State::Suspended,
    State::Succeeded,
    State::Failed,
    State::Cancelled,
];

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, session: &Session<'_>) {
    let watch = &session.watch;
    let gap = if area.width >= WIDE { 3 } else { 1 };
    let mut names = Vec::new();
    let mut values = Vec::new();
    let mut width = 0;
    for state in COUNTED {
        let cell = state.as_str().len() + gap;
        width += cell;
        names.push(Span::from(format!(" {:<1$}", state.as_str(), cell - 1)).dark_gray());
        let count = watch.counts.total(state);
        let value = Span::from(format!(" {count:<0$}", cell - 1)).fg(color(state));
        values.push(if count == 0 { value.dim() } else { value.bold() });
    }
    let width = u16::try_from(width).unwrap_or(area.width);
    let [numbers, rate] = Layout::horizontal([Constraint::Length(width), Constraint::Min(1)]).areas(area);
    let paused = if watch.paused {
        Line::from(format!(" queue {} is paused: press p", session.queue)).magenta().bold()
    } else {
        Line::default()
    };
    frame.render_widget(Paragraph::new(vec![Line::from(names), Line::from(values), paused]), numbers);
    let seconds = watch.throughput.len().saturating_sub(usize::from(rate.width));
    let data: Vec<u64> = watch.throughput.iter().skip(seconds).copied().collect();
    let per_second = watch.per_second();
    let [label, graph] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(rate);
    frame.render_widget(Line::from(format!("{per_second:.1} jobs/s ")).right_aligned().dark_gray(), label);
    frame.render_widget(Sparkline::default().data(&data).max(peak(&watch.throughput)).cyan(), graph);
}

/// The top of the graph: never so low that one job fills it.
fn peak(throughput: &std::collections::VecDeque<u64>) -> u64 {
    throughput.iter().copied().max().unwrap_or(0).max(4)
}

fn draw_jobs(frame: &mut Frame<'_>, area: Rect, session: &Session<'_>) {
    let wide = area.width >= WIDE;
    let rows = session.watch.rows.iter().map(|row| job_row(row, session, wide));
    let (id, node) = if wide { (36, 8) } else { (9, 0) };
    let widths = [12, 12, id, 7, node, 8].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]);
    let node = if wide { "node" } else { "" };
    let header =
        ["state", "kind", "id", "attempt", node, "when", ""].map(|name| Cell::from(name).dark_gray());
    let table = Table::new(rows, widths).header(Row::new(header)).block(frame_of(" Jobs "));
    frame.render_widget(table, area);
}

fn job_row<'a>(row: &watch::Row, session: &Session<'_>, wide: bool) -> Row<'a> {
    let job = &row.job;
    let watch = &session.watch;
    let id = job.id.to_string();
    let id = if wide { id } else { format!("…{}", &id[id.len() - 8..]) };
    // The end of a node's name is what tells it from others.
    let node = watch.node_name(job.node).and_then(|name| name.rsplit('-').next()).unwrap_or_default();
    let style = if job.status.state.is_terminal() { Style::new().dark_gray() } else { Style::new() };
    Row::new([
        Cell::from(state_text(job)).style(Style::new().fg(color(job.status.state))),
        Cell::from(job.kind.to_string()),
        Cell::from(id).style(Style::new().dark_gray()),
        Cell::from(jobs::attempt(job)),
        Cell::from(text::line(node, 8)).style(Style::new().dark_gray()),
        Cell::from(jobs::when(job, watch.now).replace(" ago", "")),
        Cell::from(detail(row, session)),
    ])
    .style(style)
}

fn state_text(job: &Summary) -> String {
    let mark = match job.status.state {
        State::Ready | State::Blocked => "·",
        State::Scheduled => "◷",
        State::Running if job.cancelling => "⊘",
        State::Running => "▶",
        State::Suspended => "‖",
        State::Succeeded => "✔",
        State::Failed => "✖",
        State::Cancelled | State::Skipped => "⊘",
    };
    let word = if job.cancelling { "cancelling" } else { job.status.state.as_str() };
    format!("{mark} {word}")
}

/// What is worth knowing of a job in its state.
fn detail(row: &watch::Row, session: &Session<'_>) -> Line<'static> {
    let mut parts = Vec::new();
    let job = &row.job;
    if job.crashes > 0 && !job.status.state.is_terminal() {
        parts.push(Span::from(format!("{}  ", text::crashes(job.crashes))).magenta());
    }
    match (&row.progress, &row.note) {
        _ if session.is_orphan(job) => parts.push(Span::from("its node is dead").red().bold()),
        (Some(progress), _) => parts.extend(progress_text(progress)),
        (None, _) if job.status.state == State::Suspended => {
            parts.push(Span::from(job.status.reason.map_or("", Reason::as_str)).magenta());
        }
        // What went wrong before is history.
        (None, Some(note)) if job.status.state != State::Succeeded => {
            let note = Span::from(text::line(note, 120));
            parts.push(if job.status.state == State::Failed { note.red() } else { note });
        }
        (None, _) => {}
    }
    Line::from(parts)
}

fn progress_text(progress: &Progress) -> Vec<Span<'static>> {
    let note = Span::from(format!(" {}", text::line(&progress.note, 60))).dark_gray();
    if progress.total == 0 {
        return vec![Span::from(progress.done.to_string()), note];
    }
    let fraction = progress.done as f64 / progress.total as f64;
    vec![Span::from(bar(fraction, 10)).yellow(), Span::from(format!(" {:>3.0}%", fraction * 100.0)), note]
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, session: &Session<'_>) {
    let room = usize::from(area.height.saturating_sub(2));
    let skip = session.events.len().saturating_sub(room);
    let lines: Vec<Line<'_>> =
        session.events.iter().skip(skip).map(|event| event_line(event, area.width)).collect();
    frame.render_widget(Paragraph::new(lines).block(frame_of(" Events ")), area);
}

fn event_line(event: &Event, width: u16) -> Line<'static> {
    let style = match event.tone {
        Tone::Good => Style::new().green(),
        Tone::Bad => Style::new().red(),
        Tone::Warn => Style::new().yellow(),
        Tone::Plain => Style::new(),
        Tone::Loud => Style::new().magenta().bold(),
    };
    let mut parts = vec![
        Span::from(text::clock(event.at)).dark_gray(),
        Span::from(format!(" {:<10} ", event.word)).style(style),
    ];
    if let Some((id, kind)) = &event.job {
        let id = id.to_string();
        let id = if width >= WIDE { id } else { format!("…{}", &id[id.len() - 8..]) };
        parts.push(Span::from(format!("{kind} ")));
        parts.push(Span::from(format!("{id} ")).dark_gray());
    }
    let detail = Span::from(text::line(&event.detail, 300));
    parts.push(if event.tone == Tone::Loud { detail.style(style) } else { detail });
    Line::from(parts)
}

fn footer(session: &Session<'_>) -> Line<'static> {
    if session.draining {
        return Line::from(" draining: running jobs may end; q again to stop now").yellow().bold();
    }
    let pause = if session.watch.paused { "resume the queue" } else { "pause the queue" };
    let mut parts = vec![Span::from(" ")];
    let keys = [("k", "kill the worker"), ("p", pause), ("e", "enqueue 50"), ("q", "quit")];
    for (key, what) in if session.only_looks() { &keys[3..] } else { &keys[..] } {
        parts.push(Span::from(format!(" {key} ")).black().on_gray());
        parts.push(Span::from(format!(" {what}  ")));
    }
    Line::from(parts)
}

#[cfg(test)]
mod tests {
    use mainspring::Engine;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::worker::WorkerCommand;
    use super::*;
    use crate::command::pool::PoolArgs;
    use crate::output::Out;
    use crate::store::Target;

    /// What the view shows of a store, at a size.
    async fn shown(engine: &Engine, width: u16, height: u16) -> String {
        let recipe = WorkerCommand::new(
            Target { address: "memory:", relaxed: false },
            &[],
            false,
            &PoolArgs::default(),
        );
        let mut session = Session::new(engine, recipe, "default", false, Out::new(false));
        session.watch.look(engine, "default").await.expect("a look");
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &session)).expect("drawn");
        terminal.backend().to_string()
    }

    #[tokio::test]
    async fn jobs_counts_and_keys_are_shown() {
        let engine = Engine::open("memory:").await.expect("a store");
        let job = engine.enqueue_json("demo.mail", &serde_json::Value::Null).await.expect("stored");
        engine.enqueue_json("demo.evil", &serde_json::Value::Null).await.expect("stored");
        let wide = shown(&engine, 120, 40).await;
        for part in ["Mainspring", "memory", "ready", "demo.mail", "kill the worker", &job.id.to_string()] {
            assert!(wide.contains(part), "{part} is missing:\n{wide}");
        }
        let narrow = shown(&engine, 80, 24).await;
        for part in ["cancelled", "demo.mail", "quit", &job.id.to_string()[28..]] {
            assert!(narrow.contains(part), "{part} is missing:\n{narrow}");
        }
    }

    #[tokio::test]
    async fn whoever_only_looks_has_nothing_to_press_but_q() {
        let engine = Engine::open("memory:").await.expect("a store");
        engine.enqueue_json("demo.mail", &serde_json::Value::Null).await.expect("stored");
        let mut session = Session::onlooker(&engine, std::time::Duration::from_secs(1), Out::new(false));
        session.watch.look(&engine, "").await.expect("a look");
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &session)).expect("drawn");
        let shown = terminal.backend().to_string();
        for part in ["watch", "no node is live", "demo.mail", "ready", "quit"] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        assert!(!shown.contains("kill"), "{shown}");
    }

    #[tokio::test]
    async fn any_size_of_terminal_will_do() {
        let engine = Engine::open("memory:").await.expect("a store");
        for (width, height) in [(1, 1), (10, 3), (20, 60), (300, 5)] {
            shown(&engine, width, height).await;
        }
    }
}
