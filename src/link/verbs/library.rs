//! libibverbs, opened at run time: a table of its functions.
//!
//! Nothing of this library is linked against it, so that a process that never leaves its host needs no driver. Every
//! function is asked for in the version whose meaning is known ([`Object::versioned`]): the loader's default may be a later one.
//! Posting and polling are no functions of the library but of a device's driver, reached through its context.

use crate::base::{Error, Result, Status};
use crate::sys::dl::Object;
use ibverbs_sys as ib;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

/// The name that the loader looks for, `LD_LIBRARY_PATH` first.
const NAME: &CStr = c"libibverbs.so.1";

macro_rules! table {
    ($($(#[doc = $doc:literal])* $field:ident = $symbol:literal @ $version:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions. Whoever calls one keeps its contract in `man ibv_...`.
        #[derive(Debug)]
        pub struct Library {
            $($(#[doc = $doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        fn look_up(object: &Object) -> std::result::Result<Library, String> {
            $(
                let $field = match object.versioned($symbol, $version) {
                    0 => return Err(format!("{} has no {} of version {}", name(NAME), name($symbol), name($version))),
                    // SAFETY: the function of that name and version has this type, since that version.
                    at => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $ret>(at) },
                };
            )*
            Ok(Library { $($field),* })
        }
    };
}

table! {
    device_list = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ib::ibv_device;
    free_list = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut ib::ibv_device) -> ();
    device_name = c"ibv_get_device_name" @ c"IBVERBS_1.1": fn(*mut ib::ibv_device) -> *const c_char;
    open_device = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut ib::ibv_device) -> *mut ib::ibv_context;
    close_device = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut ib::ibv_context) -> c_int;
    query_device = c"ibv_query_device" @ c"IBVERBS_1.1": fn(*mut ib::ibv_context, *mut ib::ibv_device_attr) -> c_int;
    query_port = c"ibv_query_port" @ c"IBVERBS_1.1": fn(*mut ib::ibv_context, u8, *mut ib::ibv_port_attr) -> c_int;
    gid_table = c"_ibv_query_gid_table" @ c"IBVERBS_1.11": fn(*mut ib::ibv_context, *mut ib::ibv_gid_entry, usize, u32, usize) -> isize;
    alloc_pd = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut ib::ibv_context) -> *mut ib::ibv_pd;
    dealloc_pd = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut ib::ibv_pd) -> c_int;
    reg_mr = c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8": fn(*mut ib::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ib::ibv_mr;
    dereg_mr = c"ibv_dereg_mr" @ c"IBVERBS_1.1": fn(*mut ib::ibv_mr) -> c_int;
    create_cq = c"ibv_create_cq" @ c"IBVERBS_1.1": fn(*mut ib::ibv_context, c_int, *mut c_void, *mut ib::ibv_comp_channel, c_int) -> *mut ib::ibv_cq;
    destroy_cq = c"ibv_destroy_cq" @ c"IBVERBS_1.1": fn(*mut ib::ibv_cq) -> c_int;
    create_qp = c"ibv_create_qp" @ c"IBVERBS_1.1": fn(*mut ib::ibv_pd, *mut ib::ibv_qp_init_attr) -> *mut ib::ibv_qp;
    qp_to_qp_ex = c"ibv_qp_to_qp_ex" @ c"IBVERBS_1.6": fn(*mut ib::ibv_qp) -> *mut ib::ibv_qp_ex;
    modify_qp = c"ibv_modify_qp" @ c"IBVERBS_1.1": fn(*mut ib::ibv_qp, *mut ib::ibv_qp_attr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp" @ c"IBVERBS_1.1": fn(*mut ib::ibv_qp) -> c_int;
}

fn name(c: &CStr) -> std::borrow::Cow<'_, str> {
    c.to_string_lossy()
}

impl Library {
    /// The process's libibverbs, opened at the first call that finds one. `NOT_SUPPORTED` when there is none, or one that is too
    /// old. Takes the loader's lock: not in hooks, not in signal handlers.
    pub fn get() -> Result<&'static Library> {
        static OPEN: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = *open {
            return Ok(found);
        }
        let attempt = "use RDMA";
        let unfit = |why: String| Error::new(Status::NOT_SUPPORTED, attempt, why);
        let object = Object::open(NAME).map_err(|why| {
            unfit(why).remedy("install libibverbs (packages libibverbs1 and ibverbs-providers, or rdma-core)")
        })?;
        let table = look_up(&object).map_err(|why| unfit(why).remedy("install rdma-core 32 or newer"))?;
        // Once in the life of a process; the loader keeps the library for as long.
        Ok(open.insert(Box::leak(Box::new(table))))
    }
}
