//! The private entry points (`IBVERBS_PRIVATE_34`) that libibverbs has for its provider libraries.
//!
//! perftest and UCX are linked with libmlx5 and libefa, which bind these names when they are loaded and register their
//! drivers. The soft HCA has no kernel devices to match, so a registered driver is never called; a call that would talk
//! to the kernel answers `EOPNOTSUPP`.

use std::ffi::{c_char, c_int, c_void};

/// Functions that return an errno value and refuse.
macro_rules! refuse {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

refuse! {
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    verbs_allow_disassociate_destroy
}

/// Takes note of a provider, that is, does nothing: there is no kernel device it could serve.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34(_ops: *const c_void) {}

/// Providers make their contexts with it, after being matched to a device.
#[unsafe(no_mangle)]
extern "C" fn _verbs_init_and_alloc_context() -> *mut c_void {
    super::pointer(Err(libc::EOPNOTSUPP))
}

/// `mlx5dv_open_device` and the like: no device is of their kind.
#[unsafe(no_mangle)]
extern "C" fn verbs_open_device(_device: *mut c_void, _private: *mut c_void) -> *mut c_void {
    super::pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn verbs_set_ops(_context: *mut c_void, _ops: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn verbs_init_cq(_cq: *mut c_void, _context: *mut c_void, _channel: *mut c_void, _cq_context: *mut c_void) {}

/// Attributes of a kernel command: none is ever sent.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs(attrs: u32, _link: *const c_void) -> u32 {
    attrs
}

/// Providers' own log. The real one is silent unless VERBS_LOG_LEVEL is set; this one always is. The further arguments
/// are the caller's to clean up, so they need not be taken.
#[unsafe(no_mangle)]
extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_char) {}

/// No file describes a soft device.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file(_buf: *mut c_char, _size: usize, _device: *mut c_void) -> c_int {
    super::set_errno(libc::ENOENT);
    -1
}
