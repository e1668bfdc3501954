//! RDMA: the parts of which the network link and the exporter's network side are made.
//!
//! * [`library`]: libibverbs, opened at run time.
//! * [`device`], [`port`]: an open device, and the choice of one with its ports, which says why it was made.
//! * [`domain`]: protection domains, registered memory.
//! * [`queue`]: reliable queue pairs and completion queues.
//! * [`home`]: what an exporter gives to one client.
//! * [`cm`], [`reception`]: the other rendezvous, by the kernel's connection manager.
//! * [`request`]: lists of work requests, posted with one doorbell.
//! * [`words`]: completion statuses and error numbers in plain words.
//! * [`client`]: the network link itself, made of these.
//!
//! # The exporter's side of a connection
//! ```text
//! let choice = port::choose(&wish, Some(local address of the TCP connection), Table::Own)?;   // once, on the thread that does all this
//! let domain = Domain::new(&choice.device)?;                                                   // one for each client and region
//! let home = unsafe { domain.register(base, len, Rights::Write or Rights::Read) }?;            // Connected { addr: base, rkey: home.rkey }
//! let cq = Completions::new(&choice.device, lanes)?;                                           // nothing ever completes here
//! for each lane of Connect: QueuePair::new(&domain, &cq, port, Depth { requests: 1, inline: 0 }, true)?.connect(lane)?; endpoint()
//! ```
//! Revocation is dropping: first the queue pairs, then the registration, then the domain, each of which waits until the device is done with it.
//! Order of drops otherwise does not matter: everything holds what it is made of.
//!
//! # Threads
//! A device is opened in the program's descriptor table or in the calling thread's own ([`device::Table`]). Own threads of the
//! library have tables of their own; [`device::Device::at_hand`] brings the descriptors there before a call.

pub mod client;
pub mod cm;
pub mod device;
pub mod domain;
mod extended;
pub mod foreign;
pub mod home;
pub mod library;
pub mod port;
pub mod queue;
pub mod reception;
pub mod request;
pub mod words;

pub use client::VerbsLink;
pub use device::{Device, Table};
pub use domain::{Domain, Registered, Rights};
pub use foreign::Foreign;
pub use home::{Adapters, Grant};
pub use port::{Choice, Port, choose};
pub use queue::{Completion, Completions, Depth, QueuePair};
pub use request::{Batch, Place, Request, Verb};
