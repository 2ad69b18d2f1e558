//! Unsafe access to tensors on the host as bytes.

use tch::{Device, TchError, Tensor};

/// Copies the elements of a tensor on any device, with any strides, to contiguous memory. `to` has their size in bytes.
pub(super) fn copy_into(from: &Tensor, to: &mut [u8]) -> Result<(), TchError> {
    let bytes = from.numel() * from.kind().elt_size_in_bytes();
    assert_eq!(to.len(), bytes, "the layout gives each item the bytes of its elements");
    let size = from.size();
    let mut strides = Vec::new();
    let mut behind = 1;
    for length in size.iter().rev() {
        strides.insert(0, behind);
        behind *= (*length).max(1);
    }
    // SAFETY: the memory has the bytes of a contiguous tensor of this size and kind, and outlives the view, which ends here.
    let mut view = unsafe { Tensor::f_from_blob(to.as_mut_ptr(), &size, &strides, from.kind(), Device::Cpu)? };
    tch::no_grad(|| view.f_copy_(from))
}
