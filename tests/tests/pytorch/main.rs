//! What needs a Python with PyTorch: the package `enn` in `python` under the supervisor, and tools of others that make something of what we
//! export. Tests that find none say so and pass, except where the environment says that they must run, as `make aoti` and `make makers` do.
//! More with PyTorch is in `tests/conformance`.

mod elastic;
mod makers;
mod replace;
