//! The terminal: taken over while the view is shown, and always given back.

use std::io;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::session::Session;
use super::view;

/// What a person can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// `k`: kill the worker.
    Kill,
    /// `p`: pause or resume the queue.
    Pause,
    /// `e`: enqueue a batch.
    Enqueue,
    /// `q` or Ctrl-C: drain and quit.
    Quit,
    /// Nothing, but the window has another size.
    Redraw,
}

/// How often the reader of keys looks whether it is still needed.
const POLL: Duration = Duration::from_millis(100);

/// The terminal while it is ours. Dropping it gives it back; so does a panic.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    keys: UnboundedReceiver<Key>,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        // Also installs a panic hook that restores the terminal.
        let terminal = ratatui::try_init()?;
        let (sender, keys) = unbounded_channel();
        let screen = Screen { terminal, keys };
        std::thread::Builder::new().name("keys".into()).spawn(move || read(&sender))?;
        Ok(screen)
    }

    /// Waits for a key that means something.
    pub(super) async fn key(&mut self) -> Key {
        match self.keys.recv().await {
            Some(key) => key,
            // The terminal is gone: signals still work.
            None => std::future::pending().await,
        }
    }

    pub(super) fn draw(&mut self, session: &Session<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, session)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads keys until nobody wants them any more.
fn read(keys: &UnboundedSender<Key>) {
    while !keys.is_closed() {
        let event = match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        match event {
            Ok(event) => {
                if let Some(key) = meaning(&event) {
                    // Fails only when the view is gone, and then so is this.
                    let _ = keys.send(key);
                }
            }
            Err(_) => return,
        }
    }
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
            KeyCode::Char('k' | 'K') => Some(Key::Kill),
            KeyCode::Char('p' | 'P') => Some(Key::Pause),
            KeyCode::Char('e' | 'E') => Some(Key::Enqueue),
            KeyCode::Char('q' | 'Q') => Some(Key::Quit),
            _ => None,
        },
        _ => None,
    }
}
