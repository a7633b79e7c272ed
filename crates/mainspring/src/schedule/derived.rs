//! What `#[job(schedule = "…")]` asks of a job with fields, and what the compiler says if it is not there.

/// A job that each fire of its schedule can enqueue.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has fields and a schedule, but no `Default`",
    label = "each fire enqueues the default of this job",
    note = "derive `Default`, or give the node `NewSchedule::of(name, &job)` with the job that you mean"
)]
pub trait HasDefault {
    /// It.
    fn of_fire() -> Self;
}

#[diagnostic::do_not_recommend]
impl<J: Default> HasDefault for J {
    fn of_fire() -> Self {
        J::default()
    }
}

/// The job that each fire of a derived schedule enqueues.
pub fn scheduled_default<J: HasDefault>() -> J {
    J::of_fire()
}
