//! Errors on the slow path: what was attempted, why it failed, what to do. Hot paths carry a bare [`Status`].

use super::status::Status;

/// A failed call, in words. Rendered as `cannot ATTEMPT: WHY (remedy: REMEDY)`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {attempt}: {why}{}{remedy}", if remedy.is_empty() { "" } else { "; " })]
pub struct Error {
    /// The code the C API returns.
    pub status: Status,
    /// What was attempted, as an infinitive: `map region "grads"`.
    pub attempt: String,
    /// Why it failed.
    pub why: String,
    /// What the user can do; may be empty.
    pub remedy: String,
}

/// Result with the full error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a remedy.
    pub fn new(status: Status, attempt: impl Into<String>, why: impl Into<String>) -> Error {
        Error { status, attempt: attempt.into(), why: why.into(), remedy: String::new() }
    }

    /// The status's own sentence as the reason.
    pub fn of(status: Status, attempt: impl Into<String>) -> Error {
        Error::new(status, attempt, status.text())
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Error {
        self.remedy = remedy.into();
        self
    }
}
