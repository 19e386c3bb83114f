//! The loop: read the newest desired state and the host, take the step from the table, report, wait for a change.
//!
//! ```text
//!  read_facts ──► situation ──► step ─┬─ idle, wait_staged   refresh as often as policy requires
//!                   (pure)     (pure) ├─ stage               settings, refresh, download
//!                                     ├─ deactivate, prepare_again   disarm a host
//!                                     ├─ permit              request ──► verify ──► activate, reboot; in a drill neither
//!                                     └─ fail                ends the attempt, with the reason from the step table
//! ```
//!
//! Each turn runs at most one host command and then decides again, so a withdrawn or newer desired state is noticed
//! between any two calls. All decisions are pure functions: the step table in `models::agent_step`, the
//! rest in the modules of this crate (`situation`, `staging`, `settings`, `refreshes`).

mod boot_state;
mod command;
mod disarm;
mod driver;
mod facts;
mod fail;
mod idle;
mod moment;
mod next;
mod outage;
mod permit;
mod permit_request;
mod report;
mod report_state;
mod settings;
mod settings_progress;
mod stage;
mod step;
mod turn;

pub use driver::AgentError;
pub(crate) use driver::Driver;
