//! libsmc.so
use smc_engine as _;
