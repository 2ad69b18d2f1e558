import tempfile

with tempfile.TemporaryDirectory(dir=job["scratch"]) as scratch:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        os.environ[name] = scratch
    tempfile.tempdir = scratch
    import torch

    program = torch.export.load(job["source"])
    if job["device"] != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, job["device"])
    package = os.path.join(scratch, "package.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package)
    about = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1).get_metadata()
    os.replace(package, job["out"])
say({"made": {"versions": versions, "about": about}})
