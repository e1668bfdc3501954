//! The extended interface of completion queues: one completion at a time, field by field.

use super::cq::{CqObject, current, take};
use super::object;
use crate::events::lock;
use ibverbs_sys as sys;

/// Sets the functions.
pub fn fill(cq: &mut sys::ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
}

unsafe extern "C" fn start_poll(cq: *mut sys::ibv_cq_ex, attr: *mut sys::ibv_poll_cq_attr) -> i32 {
    // SAFETY: the program gives an attribute, or null.
    if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: the program gives a queue.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut sys::ibv_cq_ex) -> i32 {
    // SAFETY: the program gives a queue.
    let own: &CqObject = unsafe { object(cq) };
    let mut wc = crate::cq::Wc::default();
    if take(own, 1, |_, from| wc = *from) == 0 {
        return libc::ENOENT;
    }
    *lock(&own.current) = wc;
    // SAFETY: between start_poll and end_poll this thread alone uses these fields.
    unsafe { (*cq).wr_id = wc.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = wc.status };
    0
}

extern "C" fn end_poll(_cq: *mut sys::ibv_cq_ex) {}

macro_rules! read {
    ($($name:ident: $type:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut sys::ibv_cq_ex) -> $type {
            // SAFETY: the program gives a queue.
            unsafe { current(cq, |wc| wc.$field as $type) }
        }
    )*};
}

read! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: u32 = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}
