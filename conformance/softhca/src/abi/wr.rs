//! The ibv_wr_ interface: requests made by a series of calls between `ibv_wr_start` and `ibv_wr_complete`.

use super::memory::Handle;
use super::qp::QpObject;
use super::{argument, object, post as convert};
use crate::device;
use crate::events::lock;
use crate::post::{self, may_inline};
use crate::wqe::{Address, Data, SendWqe, Sge, Sges};
use ibverbs_sys as sys;
use ibverbs_sys::ibv_wr_opcode as op;
use std::ffi::c_void;

/// Sets the functions.
pub fn fill(qp: &mut sys::ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_flush = Some(flush);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_ud_addr = Some(set_ud_addr);
}

/// # Safety
/// `qp` must be a queue pair of this library.
unsafe fn own<'a>(qp: *mut sys::ibv_qp_ex) -> &'a QpObject {
    // SAFETY: the caller vouches.
    unsafe { object(qp) }
}

/// Begins a request.
///
/// # Safety
/// `qp` must be a queue pair of this library.
unsafe fn begin(qp: *mut sys::ibv_qp_ex, opcode: u32, rest: impl FnOnce(&mut SendWqe)) {
    // SAFETY: the caller vouches.
    let own = unsafe { own(qp) };
    // The inline flag is what the data call says.
    let (wr_id, flags) = (own.public.wr_id, own.public.wr_flags & !post::INLINE);
    let mut building = lock(&own.building);
    match post::request(&own.core, wr_id, opcode, flags) {
        Ok(mut wqe) => {
            rest(&mut wqe);
            building.wqes.push(wqe);
        }
        Err(e) if building.error == 0 => building.error = e,
        Err(_) => {}
    }
}

/// Goes on with the request that was begun last.
///
/// # Safety
/// `qp` must be a queue pair of this library.
unsafe fn go_on(qp: *mut sys::ibv_qp_ex, rest: impl FnOnce(&QpObject, &mut SendWqe) -> Result<(), i32>) {
    // SAFETY: the caller vouches.
    let own = unsafe { own(qp) };
    let mut building = lock(&own.building);
    let done = building.wqes.last_mut().ok_or(libc::EINVAL).and_then(|wqe| rest(own, wqe));
    if let (Err(e), 0) = (done, building.error) {
        building.error = e;
    }
}

unsafe extern "C" fn start(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: the program gives a queue pair.
    unsafe { abort(qp) }
}

unsafe extern "C" fn abort(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: the program gives a queue pair.
    let mut building = lock(&unsafe { own(qp) }.building);
    building.wqes.clear();
    building.error = 0;
}

/// All or none of the requests are posted, but for a queue that is full: what fits before is.
unsafe extern "C" fn complete(qp: *mut sys::ibv_qp_ex) -> i32 {
    // SAFETY: the program gives a queue pair.
    let own = unsafe { own(qp) };
    let mut building = lock(&own.building);
    let error = std::mem::take(&mut building.error);
    if error != 0 || own.context.faults.removed() {
        building.wqes.clear();
        return if error == 0 { libc::EIO } else { error };
    }
    let result = building.wqes.drain(..).try_for_each(|wqe| post::post(&own.core, wqe));
    own.context.kick(own.core.number);
    super::code(result)
}

unsafe extern "C" fn send(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_SEND, |_| {}) }
}

unsafe extern "C" fn send_imm(qp: *mut sys::ibv_qp_ex, imm: u32) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_SEND_WITH_IMM, |w| w.imm = Some(imm)) }
}

unsafe extern "C" fn send_inv(qp: *mut sys::ibv_qp_ex, rkey: u32) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_SEND_WITH_INV, |w| w.invalidate = Some(rkey)) }
}

unsafe extern "C" fn local_inv(qp: *mut sys::ibv_qp_ex, rkey: u32) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_LOCAL_INV, |w| w.invalidate = Some(rkey)) }
}

unsafe extern "C" fn bind_mw(
    qp: *mut sys::ibv_qp_ex,
    mw: *mut sys::ibv_mw,
    rkey: u32,
    info: *const sys::ibv_mw_bind_info,
) {
    // SAFETY: the program gives what is bound to what.
    let info = unsafe { argument(info) };
    // SAFETY: the program gives a window.
    let bind = unsafe { super::window::binding(mw, rkey, info, true) };
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_BIND_MW, |_| {}) };
    let rest = |_: &QpObject, w: &mut SendWqe| bind.map(|b| w.bind = Some(b));
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}

unsafe extern "C" fn rdma_write(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_RDMA_WRITE, |w| (w.rkey, w.addr) = (rkey, addr)) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let rest = |w: &mut SendWqe| (w.rkey, w.addr, w.imm) = (rkey, addr, Some(imm));
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_RDMA_WRITE_WITH_IMM, rest) }
}

unsafe extern "C" fn rdma_read(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_RDMA_READ, |w| (w.rkey, w.addr) = (rkey, addr)) }
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let rest = |w: &mut SendWqe| (w.rkey, w.addr, w.a, w.b) = (rkey, addr, compare, swap);
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_ATOMIC_CMP_AND_SWP, rest) }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let rest = |w: &mut SendWqe| (w.rkey, w.addr, w.a) = (rkey, addr, add);
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_ATOMIC_FETCH_AND_ADD, rest) }
}

/// Only what makes bytes visible on the whole host: this memory does not outlive it.
unsafe extern "C" fn flush(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, len: usize, kind: u8, level: u8) {
    const GLOBAL: u8 = 1;
    const RANGE: u8 = 0;
    const REGION: u8 = 1;
    // Of a whole region only the key counts; its first byte stands for it.
    let bytes = if level == REGION { 1 } else { len as u64 };
    // SAFETY: the program gives a queue pair.
    unsafe { begin(qp, op::IBV_WR_FLUSH, |w| (w.rkey, w.addr, w.a) = (rkey, addr, bytes)) }
    let rest = |_: &QpObject, _: &mut SendWqe| {
        let known = kind == GLOBAL && matches!(level, RANGE | REGION) && u32::try_from(len).is_ok();
        if known && device::flushes() { Ok(()) } else { Err(libc::EINVAL) }
    };
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}

unsafe extern "C" fn set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    let rest = |_: &QpObject, w: &mut SendWqe| {
        w.data = Data::Pieces(Sges::new(std::iter::once(Sge { addr, len, lkey })));
        Ok(())
    };
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}

unsafe extern "C" fn set_sge_list(qp: *mut sys::ibv_qp_ex, n: usize, list: *const sys::ibv_sge) {
    let rest = |own: &QpObject, w: &mut SendWqe| {
        if n > own.core.caps.max_send_sge as usize {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program gives `n` pieces.
        let list = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, n) } };
        w.data = Data::Pieces(convert::sges(list));
        Ok(())
    };
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}

unsafe extern "C" fn set_inline_data(qp: *mut sys::ibv_qp_ex, addr: *mut c_void, len: usize) {
    let buffer = sys::ibv_data_buf { addr, length: len };
    // SAFETY: the program gives a queue pair, and a buffer of that length.
    unsafe { set_inline_data_list(qp, 1, &buffer) }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut sys::ibv_qp_ex, n: usize, list: *const sys::ibv_data_buf) {
    let rest = |own: &QpObject, w: &mut SendWqe| {
        let mut bytes = Vec::new();
        for i in 0..n {
            // SAFETY: the program gives `n` buffers.
            let buffer = unsafe { argument(list.wrapping_add(i)) };
            if !may_inline(&own.core, w.op, bytes.len() + buffer.length) {
                return Err(libc::EINVAL);
            }
            // SAFETY: the program gives readable buffers.
            unsafe { convert::inline(&mut bytes, buffer.addr.cast(), buffer.length) };
        }
        w.data = Data::Inline(bytes);
        Ok(())
    };
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}

unsafe extern "C" fn set_ud_addr(qp: *mut sys::ibv_qp_ex, ah: *mut sys::ibv_ah, qpn: u32, qkey: u32) {
    let rest = |_: &QpObject, w: &mut SendWqe| {
        if ah.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program gives a handle.
        let gid = unsafe { object::<Handle, _>(ah) }.gid;
        w.to = Address { gid, qpn, qkey };
        Ok(())
    };
    // SAFETY: the program gives a queue pair.
    unsafe { go_on(qp, rest) }
}
