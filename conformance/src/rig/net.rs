//! Homes on the other side of a network: an exporter listens on 127.0.0.1, and a link of an RDMA device comes in by that.

use smc_engine::base::config::Config;
use smc_engine::core::export::Exporter;
use smc_engine::core::export::net::Network;
use smc_engine::link::Link;
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::verbs::{Device, VerbsLink};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

/// The key of this process and of its children. To be asked for before there are any.
pub fn key() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::generate(None).expect("a key"))
}

/// Port on which this process's exporter listens, from the first call on.
pub fn listen() -> u16 {
    static NETWORK: OnceLock<Network> = OnceLock::new();
    let start = || {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Exporter::get().and_then(|e| e.listen(any, key().clone().into())).expect("a listening exporter")
    };
    NETWORK.get_or_init(start).address().port()
}

/// A link to the exporter that listens on `port` of this host, over the device that the environment names.
pub fn connect(port: u16) -> Arc<dyn Link> {
    let c = Config::parse(|name| std::env::var(name).ok());
    Arc::new(VerbsLink::with_key("127.0.0.1", port, key().clone(), c.device, c.lanes, c.log).by(c.rendezvous))
}

/// Whether this host has an RDMA device at all, or the reason why not.
pub fn device() -> Result<(), String> {
    match Device::names() {
        Ok(names) if names.is_empty() => Err("this host has no RDMA device".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}
