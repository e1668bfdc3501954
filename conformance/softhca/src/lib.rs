//! A software HCA: a `libibverbs.so.1` for programs that know nothing of it, without hardware, kernel driver or root.
//!
//! ```text
//! mkdir DIR && ln -s $PWD/target/release/libsofthca.so DIR/libibverbs.so.1
//! LD_LIBRARY_PATH=DIR ibv_devinfo
//! LD_LIBRARY_PATH=DIR ibv_rc_pingpong -g 1 &  LD_LIBRARY_PATH=DIR ibv_rc_pingpong -g 1 127.0.0.1
//! ```
//!
//! It exists so that anyone can run and test RDMA programs. What it measures says nothing about hardware, unless a cost
//! model is declared (see `model`), and then only what was declared.
//!
//! # What there is
//! Devices `softhca0..` with Ethernet ports and RoCE v2 GIDs (`device`), between the threads and processes of one host
//! and one network namespace. RC, UC and UD queue pairs; SEND, RDMA WRITE and READ, immediate data, inline data,
//! compare-and-swap and fetch-and-add, fences; memory windows and
//! invalidation; shared receive queues; completion channels, asynchronous events; address
//! handles; the `ibv_wr_` and `ibv_cq_ex` interfaces. Keys, rights, ranges, protection domains, lengths, states,
//! attribute masks and queue depths are checked as hardware does, and errors complete with the status that hardware
//! gives. Faults come on demand (`fault`).
//!
//! Registered memory is reached as blindly as an unprivileged process can: see `memory` for what differs from pinned
//! pages.
//!
//! # What there is not
//! * On-demand paging, dma-buf and device memory, zero-based regions and windows, XRC, raw packets, multicast, parent
//!   domains, flow steering, time stamps, import of objects: `EOPNOTSUPP`.
//! * State SQE: an error of its own stops a UC or UD queue pair as a whole (ERR). `CUR_STATE` is checked, alternate paths
//!   are refused.
//! * `librdmacm`: it asks a kernel module, which knows no soft device. Connections are made by exchanging addresses.
//! * A device node: UCX wants to see a character device `/dev/infiniband/uverbs-softhcaN` before it opens one, and runs
//!   where there is one (`conformance/apps/verbs/with_device_node.sh` makes it without root).
//! * The path MTU, service levels, static rates and flow labels are taken and have no effect. Numbers of messages, not of
//!   packets, count from the initial packet sequence numbers.
//! * Versions: only default symbol versions, those of rdma-core 44, and of the private node only what providers bind
//!   (`abi::private`).
//! * A channel tells of completions that come after it was armed, as the specification has it. Some hardware also tells
//!   at once of those that are already there.
//!
//! # How it works
//! `abi` turns the program's pointers into objects of ours. `post` puts requests in the queues of a `qp`; the
//! `engine` of the open device (`context`) sends them over `link`s, each two `ring`s in shared memory, and answers
//! those of others (`wire`). A thread that polls an empty queue lends the engine a hand, and naps when there is nothing
//! to do (`cq`).

mod abi;
mod charge;
mod context;
mod cq;
mod device;
mod dma;
mod engine;
mod events;
mod fault;
mod keys;
mod link;
mod memory;
mod model;
mod modify;
mod post;
mod qp;
mod raw;
mod ring;
mod window;
mod wire;
mod wqe;
