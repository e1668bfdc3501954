//! `LIBSMC_RENDEZVOUS`.

/// How the queue pairs of a client and an exporter find each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Rendezvous {
    /// Both tell each other their numbers over the management connection.
    #[default]
    Tcp,
    /// The kernel's RDMA connection manager connects them.
    RdmaCm,
}

impl Rendezvous {
    /// All.
    pub const ALL: [Rendezvous; 2] = [Rendezvous::Tcp, Rendezvous::RdmaCm];

    /// Name as `LIBSMC_RENDEZVOUS` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Rendezvous::Tcp => "tcp",
            Rendezvous::RdmaCm => "rdma_cm",
        }
    }
}
