//! The ways that workflows of a simulation can go: races, maps, loops, tokens, code that changes, and what they say.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainspring::workflow::Mapped;
use mainspring::{Context, Failure, StepContext};
use mainspring_core::Error;
use mainspring_core::backoff::Backoff;

use super::programs::{Edit, Flow, INTERRUPTED, NOTHING, OutputPlan, Program, Race};
use super::workflow::HandlerRun;
use super::workflow_clients::SentToken;
use crate::history::{Fact, digest};

impl HandlerRun {
    /// The handler goes on with the winner of a race; a number that stands for it.
    fn decided(&self, key: &str, arm: &str, value: u64) -> u64 {
        let digest = digest(format!(r#"{{"arm":"{arm}","value":{value}}}"#).as_bytes());
        let (id, claim) = (self.id, self.current.load(Ordering::SeqCst));
        self.host.note(Fact::Decided { id, claim, key: key.to_owned(), digest });
        digest
    }

    pub(super) async fn race(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        race: &Race,
    ) -> Result<u64, Failure> {
        let (key, one, other) = (format!("race{number}"), program.value(number, 0), program.value(number, 1));
        self.comes_to(&key);
        let racing = ctx.race::<u64>(&key);
        let racing = match race {
            Race::Signal { millis, .. } => {
                let (left, path) = (Arc::clone(self), format!("{key}/work/"));
                let racing = racing.arm("work", move |ctx| async move {
                    left.step(&ctx, &path, "ask", 0).await?;
                    let name = format!("signal{number}");
                    let signal = ctx.signal::<u64>(&*name).await;
                    Ok(left.met(&format!("{path}{name}"), signal)?)
                });
                let (right, path, millis) = (Arc::clone(self), format!("{key}/rest/"), *millis);
                racing.arm("rest", move |ctx| async move {
                    ctx.sleep("nap", Duration::from_millis(millis)).await?;
                    Ok(right.step(&ctx, &path, "late", other).await?)
                })
            }
            Race::Steps { naps } => {
                let arm = |arm: &'static str, value: u64, nap: u64| {
                    let (handler_run, path) = (Arc::clone(self), format!("{key}/{arm}/"));
                    move |ctx: Context| async move {
                        if nap > 0 {
                            ctx.sleep("nap", Duration::from_millis(nap)).await?;
                        }
                        handler_run.step(&ctx, &path, "one", 0).await?;
                        Ok(handler_run.step(&ctx, &path, "two", value).await?)
                    }
                };
                racing.arm("work", arm("work", one, naps[0])).arm("rest", arm("rest", other, naps[1]))
            }
            Race::Child { program, millis } => {
                let (left, child, millis) = (Arc::clone(self), program.clone(), *millis);
                let racing = racing.arm("work", move |ctx| async move {
                    let results = child.expects();
                    let child = ctx.spawn("child", Flow(child)).await?;
                    left.host.note(Fact::Expects { id: child.id(), results });
                    match child.result().await {
                        Err(Error::Ended { .. }) => Ok(INTERRUPTED),
                        result => Ok(result?),
                    }
                });
                racing.arm("rest", move |ctx| async move {
                    ctx.sleep("nap", Duration::from_millis(millis)).await?;
                    Ok(other)
                })
            }
        };
        let won = racing.await?;
        let digest = self.decided(&key, if won == other { "rest" } else { "work" }, won);
        self.saw_as(&key, Some(digest), true);
        Ok(won)
    }

    pub(super) async fn map(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        (items, at_once, enough): (usize, usize, Option<usize>),
    ) -> Result<u64, Failure> {
        let key = format!("map{number}");
        let map = ctx.map(
            &key,
            0..items,
            |item| *item,
            |ctx, item| {
                let (handler_run, path, value) =
                    (Arc::clone(self), format!("{key}/{item}/"), program.value(number, item));
                async move {
                    handler_run.step(&ctx, &path, "one", 0).await?;
                    Ok(handler_run.step(&ctx, &path, "two", value).await?)
                }
            },
        );
        let map = map.concurrency(at_once);
        let sum = |values: Vec<u64>| values.into_iter().fold(0, u64::wrapping_add);
        Ok(match enough {
            None => sum(map.await?),
            Some(enough) => sum(map.at_least(enough).await?.into_iter().filter_map(Mapped::done).collect()),
        })
    }

    pub(super) async fn iterate(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        (turns, nap): (usize, u64),
    ) -> Result<u64, Failure> {
        let key = format!("loop{number}");
        let iterate = ctx.iterate(&key, (0, 0), |ctx, (turn, sum): (usize, u64)| {
            let (handler_run, path, value) =
                (Arc::clone(self), format!("{key}/{}/", turn + 1), program.value(number, turn));
            async move {
                let sum = sum.wrapping_add(handler_run.step(&ctx, &path, "add", value).await?);
                if nap > 0 {
                    ctx.sleep("nap", Duration::from_millis(nap)).await?;
                }
                handler_run.step(&ctx, &path, "log", 0).await?;
                let over = turn + 1 == turns;
                Ok(if over { ControlFlow::Break(sum) } else { ControlFlow::Continue((turn + 1, sum)) })
            }
        });
        iterate.await
    }

    /// Scopes inside of scopes, beside another one.
    pub(super) async fn nest(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        nap: u64,
    ) -> Result<u64, Failure> {
        let (name, late) = (format!("nest{number}"), program.value(number, 2));
        let values = [program.value(number, 0), program.value(number, 1)];
        let (handler_run, key) = (Arc::clone(self), format!("{name}/race"));
        let nest = ctx.branch(&name, move |ctx| async move {
            let (left, path) = (Arc::clone(&handler_run), format!("{key}/work/loop/"));
            let racing = ctx.race::<u64>("race").arm("work", move |ctx| async move {
                let turns = ctx.iterate("loop", (0, 0), |ctx, (turn, sum): (usize, u64)| {
                    let (handler_run, path) = (Arc::clone(&left), format!("{path}{}/map/", turn + 1));
                    async move {
                        let map = ctx.map(
                            "map",
                            0..2_usize,
                            |item| *item,
                            |ctx, item| {
                                let (handler_run, path) =
                                    (Arc::clone(&handler_run), format!("{path}{item}/"));
                                async move { Ok(handler_run.step(&ctx, &path, "one", values[item]).await?) }
                            },
                        );
                        let sum = map.await?.into_iter().fold(sum, u64::wrapping_add);
                        let over = turn == 1;
                        Ok(if over {
                            ControlFlow::Break(sum)
                        } else {
                            ControlFlow::Continue((turn + 1, sum))
                        })
                    }
                });
                turns.await
            });
            let (right, path) = (Arc::clone(&handler_run), format!("{key}/rest/deep/"));
            let racing = racing.arm("rest", move |ctx| async move {
                ctx.sleep("nap", Duration::from_millis(nap)).await?;
                ctx.branch("deep", move |ctx| async move { Ok(right.step(&ctx, &path, "late", late).await?) })
                    .await
            });
            let won = racing.await?;
            handler_run.decided(&key, if won == late { "rest" } else { "work" }, won);
            Ok(won)
        });
        let (handler_run, path, value) =
            (Arc::clone(self), format!("beside{number}/"), program.value(number, 3));
        let beside = ctx.branch(&format!("beside{number}"), move |ctx| async move {
            Ok(handler_run.step(&ctx, &path, "one", value).await?)
        });
        let (nest, beside) = tokio::join!(biased; nest, beside);
        Ok(nest?.wrapping_add(beside?))
    }

    /// Something is said: between steps, in the body of one, which may fail on its way, and in turns.
    pub(super) async fn speak(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        speech: &OutputPlan,
    ) -> Result<u64, Failure> {
        let OutputPlan { stream, fails, again, nap, turns } = *speech;
        let value = |at: usize| program.value(number, at);
        ctx.emit(value(0)).await?;
        if let Some(nap) = nap {
            let sleep = format!("sleep{number}");
            self.comes_to(&sleep);
            ctx.sleep(&sleep, Duration::from_millis(nap)).await?;
        }
        let (handler_run, key) = (Arc::clone(self), format!("speak{number}"));
        let frames: Arc<[u64]> = (1..=stream).map(value).collect();
        let body = move |step: StepContext| {
            let (handler_run, key, frames) =
                (Arc::clone(&handler_run), format!("speak{number}"), Arc::clone(&frames));
            async move {
                handler_run.enter(step.claim(), &key, false);
                let fails = handler_run.host.world.enter(handler_run.id, &key) <= fails;
                for (at, frame) in frames.iter().enumerate() {
                    step.emit(frame).await?;
                    if at % 2 == 0 {
                        handler_run.work().await;
                    }
                    if fails && at == frames.len() / 2 {
                        return Err(Failure::from("it is meant to fail"));
                    }
                }
                handler_run.ran(&key);
                Ok(0_u64)
            }
        };
        let step = ctx.step_with(&key, body).backoff(Backoff::Fixed(Duration::from_millis(20)));
        step.retry(if again { fails } else { 0 }).await?;
        ctx.emit(value(stream + 1)).await?;
        let key = format!("said{number}");
        let iterate = ctx.iterate(&key, 0, |ctx, turn: usize| {
            let (handler_run, path) = (Arc::clone(self), format!("{key}/{}/", turn + 1));
            let (frame, more) = (value(stream + 2 + turn), turn < turns);
            async move {
                if more {
                    ctx.emit(frame).await?;
                    handler_run.step(&ctx, &path, "heard", 0).await?;
                }
                Ok(if turn + 1 < turns { ControlFlow::Continue(turn + 1) } else { ControlFlow::Break(0) })
            }
        });
        iterate.await
    }

    /// A token is sent to somebody, who may come back with it.
    pub(super) async fn ask(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        millis: u64,
    ) -> Result<u64, Failure> {
        let (key, name) = (format!("ask{number}"), format!("signal{number}"));
        let values = [program.value(number, 0), program.value(number, 1)];
        let (handler_run, step, signal) = (Arc::clone(self), key.clone(), name.clone());
        let body = move |context: StepContext| {
            let (handler_run, key, signal) = (Arc::clone(&handler_run), step.clone(), signal.clone());
            async move {
                handler_run.enter(context.claim(), &key, false);
                let token = context.token::<u64>(&*signal).await?.to_string();
                handler_run.host.send(handler_run.id, SentToken { key: key.clone(), token, values });
                handler_run.work().await;
                handler_run.ran(&key);
                Ok(0_u64)
            }
        };
        ctx.step_with(&key, body).await?;
        self.comes_to(&name);
        let answer = ctx.signal::<u64>(&*name).timeout(Duration::from_millis(millis)).await?;
        Ok(answer.unwrap_or(NOTHING))
    }

    /// The code is another from some time on.
    pub(super) async fn edited(
        self: &Arc<Self>,
        ctx: &Context,
        program: &Program,
        number: usize,
        (edit, millis): (Edit, u64),
    ) -> Result<u64, Failure> {
        let (first, last) = (program.value(number, 0), program.value(number, 1));
        let before = format!("before{number}");
        let first = match edit {
            Edit::Retired if self.edited => {
                ctx.retired(&before);
                0
            }
            Edit::Renamed | Edit::Declared if self.edited => {
                let name = format!("earlier{number}");
                let step = ctx.step_with(&name, self.body(&name, first));
                if edit == Edit::Declared { step.renamed_from(&before).await? } else { step.await? }
            }
            _ => self.step(ctx, "", &before, first).await?,
        };
        if edit == Edit::Added && self.edited {
            let name = format!("between{number}");
            ctx.step_with(&name, self.body(&name, 0)).added().await?;
        }
        let sleep = format!("sleep{number}");
        self.comes_to(&sleep);
        ctx.sleep(&sleep, Duration::from_millis(millis)).await?;
        Ok(first.wrapping_add(self.step(ctx, "", &format!("after{number}"), last).await?))
    }
}
