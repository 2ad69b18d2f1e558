//! Health of this node's GPUs, as NVML tells it. A thread of its own asks, since a driver may hang.
//!
//! Without NVIDIA's driver there is no library of NVML to load: the thread ends at once, and no device is known.

use crossbeam_channel::{Receiver, Sender, bounded};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{EccCounter, MemoryError},
    enums::device::SampleValue,
    error::NvmlError,
    structs::device::FieldId,
    sys_exports::field_id,
};
use std::{ffi::OsStr, fmt, time::Duration};

const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// A GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuId {
    /// Index in the order of PCI addresses.
    pub index: u32,
    pub uuid: String,
    /// Product name; `None` where the GPU is divided (MIG), so that no worker has all of it.
    pub model: Option<String>,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.index, self.uuid)
    }
}

/// Signs of defects of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuHealth {
    /// Uncorrectable ECC errors since the driver was loaded; `None`: the GPU does not count them.
    pub uncorrectable: Option<u64>,
    /// Rows of its memory are to be remapped at the next reset.
    pub remap_pending: bool,
    /// Rows of its memory could not be remapped.
    pub remap_failed: bool,
    /// Why it cannot be used at all.
    pub lost: Option<&'static str>,
}

impl GpuHealth {
    /// Returns what is wrong now and was not before.
    pub fn trouble_since(&self, before: &Self) -> Option<String> {
        if let Some(lost) = self.lost {
            return Some(lost.to_owned());
        }
        let count = self.uncorrectable.unwrap_or(0);
        let new = count.saturating_sub(before.uncorrectable.unwrap_or(count));
        let what = if new > 0 {
            let plural = if new == 1 { "" } else { "s" };
            format!("{new} uncorrectable ECC error{plural}")
        } else if self.remap_failed && !before.remap_failed {
            "rows of its memory could not be remapped".to_owned()
        } else if self.remap_pending && !before.remap_pending {
            "an uncorrectable error: rows of its memory are to be remapped at its next reset".to_owned()
        } else {
            return None;
        };
        Some(what)
    }

    /// Returns all that is wrong, whenever it came.
    pub fn trouble(&self) -> Option<String> {
        self.trouble_since(&Self { uncorrectable: Some(0), ..Self::default() })
    }
}

/// Reads GPUs; tests have another reader than NVML.
trait ReadGpus {
    fn gpus(&self) -> Vec<GpuId>;
    /// Returns the health of a GPU, as far as it can be read.
    fn health(&self, uuid: &str) -> Option<GpuHealth>;
}

impl ReadGpus for Nvml {
    fn gpus(&self) -> Vec<GpuId> {
        let gpu = |index| {
            let device = self.device_by_index(index).ok()?;
            let is_divided = device.mig_mode().is_ok_and(|mode| mode.current != 0);
            let model = device.name().ok().filter(|_| !is_divided);
            Some(GpuId { index, uuid: device.uuid().ok()?, model })
        };
        (0..self.device_count().unwrap_or(0)).filter_map(gpu).collect()
    }

    fn health(&self, uuid: &str) -> Option<GpuHealth> {
        let health = self.device_by_uuid(uuid).and_then(|device| device_health(&device));
        let lost = match health {
            Ok(health) => return Some(health),
            // It was there at first.
            Err(NvmlError::GpuLost | NvmlError::NotFound) => "it has fallen off the bus",
            Err(NvmlError::ResetRequired) => "it does not work before it is reset",
            Err(_) => return None,
        };
        Some(GpuHealth { lost: Some(lost), ..GpuHealth::default() })
    }
}

/// Reads the counters of a GPU. One that the GPU or the driver does not have is zero.
fn device_health(device: &Device<'_>) -> Result<GpuHealth, NvmlError> {
    let supported = |error| match error {
        NvmlError::GpuLost | NvmlError::ResetRequired => Err(error),
        _ => Ok(()),
    };
    let ecc = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let uncorrectable = ecc.map(Some).or_else(|error| supported(error).map(|()| None))?;
    let fields = [field_id::NVML_FI_DEV_REMAPPED_PENDING, field_id::NVML_FI_DEV_REMAPPED_FAILURE];
    let values = device.field_values_for(&fields.map(FieldId));
    let values = values.or_else(|error| supported(error).map(|()| Vec::new()))?;
    let is_set = |at: usize| {
        let value =
            values.get(at).and_then(|sample| sample.as_ref().ok()).and_then(|sample| sample.value.as_ref().ok());
        match value {
            Some(SampleValue::U32(number)) => *number > 0,
            Some(SampleValue::U64(number)) => *number > 0,
            _ => false,
        }
    };
    Ok(GpuHealth { uncorrectable, remap_pending: is_set(0), remap_failed: is_set(1), lost: None })
}

fn nvml() -> Option<Nvml> {
    LIBRARIES.iter().find_map(|name| Nvml::builder().lib_path(OsStr::new(name)).init().ok())
}

/// Returns the GPUs of this node and their health, as far as it can be read; no GPU where there is no NVIDIA driver, `None` where the
/// driver does not answer within `limit`.
pub fn gpus_with_health(limit: Duration) -> Option<Vec<(GpuId, Option<GpuHealth>)>> {
    let (answer, answered) = bounded(1);
    let read = move || {
        let nvml = nvml();
        let gpus = nvml.iter().flat_map(|nvml| nvml.gpus().into_iter().map(move |gpu| (nvml.health(&gpu.uuid), gpu)));
        // Nobody may wait any more.
        let _late = answer.send(gpus.map(|(health, gpu)| (gpu, health)).collect());
    };
    std::thread::Builder::new().name("enn-gpus".into()).spawn(read).ok()?;
    answered.recv_timeout(limit).ok()
}

/// Returns the GPUs in the order in which CUDA numbers them: all, or those of `visible` (`CUDA_VISIBLE_DEVICES`: indices or UUIDs) up
/// to the first that is none. Empty where the numbers cannot be known: CUDA orders GPUs of several models by their speed.
fn numbered(gpus: Vec<GpuId>, visible: Option<&[String]>) -> Vec<GpuId> {
    let are_alike = gpus.iter().all(|gpu| gpu.model.is_some() && gpu.model == gpus[0].model);
    let by_name = |name: &String| match name.parse::<usize>() {
        Ok(index) => gpus.get(index).filter(|_| are_alike).cloned(),
        Err(_) if name.is_empty() => None,
        Err(_) => gpus.iter().find(|gpu| gpu.model.is_some() && gpu.uuid.starts_with(name.as_str())).cloned(),
    };
    match visible {
        Some(visible) => visible.iter().map_while(by_name).collect(),
        None if are_alike => gpus,
        None => Vec::new(),
    }
}

/// What is known of the GPU of a worker that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFinding {
    /// The GPU, for people.
    pub gpu: String,
    /// GPUs that workers of this node can have.
    pub gpus: u32,
    /// What is wrong with it that was not when the watch began.
    pub trouble: Option<String>,
}

struct Question {
    local_rank: u32,
    answer: Sender<Option<GpuFinding>>,
}

/// A thread that knows how healthy the GPUs were at first. It ends when the last of these is dropped.
#[derive(Debug, Clone)]
pub struct GpuWatch {
    questions: Sender<Question>,
}

impl GpuWatch {
    /// Starts the thread for so many workers, each of which has the GPU of its local rank among those of `visible`
    /// (`CUDA_VISIBLE_DEVICES`).
    pub fn start(visible: Option<Vec<String>>, workers: u32) -> Self {
        Self::start_with(nvml, visible, workers)
    }

    fn start_with<R: ReadGpus>(
        open: impl FnOnce() -> Option<R> + Send + 'static,
        visible: Option<Vec<String>>,
        workers: u32,
    ) -> Self {
        // Where the driver hangs, the next question waits here, and those behind it are refused.
        let (questions, asked) = bounded(1);
        let watch = move || {
            if let Some(reader) = open() {
                answer_all(&reader, visible.as_deref(), workers, &asked);
            }
        };
        // Without the thread nobody answers, as without a driver.
        let _thread = std::thread::Builder::new().name("enn-gpus".into()).spawn(watch);
        Self { questions }
    }

    /// Returns what is known of the GPU of this local rank, within `limit`; at once where the driver hangs.
    pub fn look(&self, local_rank: u32, limit: Duration) -> Option<GpuFinding> {
        let (answer, answered) = bounded(1);
        self.questions.try_send(Question { local_rank, answer }).ok()?;
        answered.recv_timeout(limit).ok().flatten()
    }
}

fn answer_all(reader: &impl ReadGpus, visible: Option<&[String]>, workers: u32, asked: &Receiver<Question>) {
    let gpus = numbered(reader.gpus(), visible);
    let before: Vec<GpuHealth> = gpus.iter().map(|gpu| reader.health(&gpu.uuid).unwrap_or_default()).collect();
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    for Question { local_rank, answer } in asked {
        // Workers that share a GPU have no device that could be left out.
        let at = usize::try_from(local_rank).ok().filter(|_| workers <= count);
        let known = at.and_then(|at| Some((gpus.get(at)?, before.get(at)?)));
        let finding = known.map(|(gpu, before)| GpuFinding {
            gpu: gpu.to_string(),
            gpus: count,
            trouble: reader.health(&gpu.uuid).and_then(|health| health.trouble_since(before)),
        });
        // Nobody may wait any more.
        let _late = answer.send(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn gpu(index: u32, model: Option<&str>) -> GpuId {
        GpuId { index, uuid: format!("GPU-{index}f"), model: model.map(str::to_owned) }
    }

    fn indices(gpus: &[GpuId], visible: Option<&str>) -> Vec<u32> {
        let visible: Option<Vec<String>> = visible.map(|list| list.split(',').map(str::to_owned).collect());
        numbered(gpus.to_vec(), visible.as_deref()).iter().map(|gpu| gpu.index).collect()
    }

    #[test]
    fn gpus_are_numbered_as_cuda_does() {
        let alike = [0, 1, 2].map(|index| gpu(index, Some("H200")));
        assert_eq!(indices(&alike, None), [0, 1, 2]);
        assert_eq!(indices(&alike, Some("2,0")), [2, 0]);
        assert_eq!(indices(&alike, Some("GPU-1f,2,-1,0")), [1, 2]);
        assert_eq!(indices(&alike, Some("")), [0; 0]);
        assert_eq!(indices(&[], None), [0; 0]);
        let mixed = [gpu(0, Some("H200")), gpu(1, Some("L4"))];
        assert_eq!(indices(&mixed, None), [0; 0], "the order is not known");
        assert_eq!((indices(&mixed, Some("1")), indices(&mixed, Some("GPU-1"))), (vec![], vec![1]));
        assert_eq!(indices(&[gpu(0, None)], None), [0; 0], "it is divided");
    }

    #[test]
    fn only_what_is_new_counts() {
        let health = |uncorrectable, remap_pending| GpuHealth { uncorrectable, remap_pending, ..GpuHealth::default() };
        let old = health(Some(3), true);
        assert_eq!(old.trouble_since(&old), None);
        assert_eq!(old.trouble().as_deref(), Some("3 uncorrectable ECC errors"));
        assert_eq!(health(Some(4), true).trouble_since(&old).as_deref(), Some("1 uncorrectable ECC error"));
        assert_eq!(health(Some(4), false).trouble_since(&health(None, false)), None, "no count to compare with");
        let remapped = health(None, true).trouble_since(&health(None, false)).unwrap();
        assert!(remapped.contains("remapped at its next reset"), "{remapped}");
        let failed = GpuHealth { remap_failed: true, ..old.clone() };
        assert_eq!(failed.trouble_since(&old).as_deref(), Some("rows of its memory could not be remapped"));
        let lost = GpuHealth { lost: Some("gone"), ..GpuHealth::default() };
        assert_eq!(lost.trouble_since(&lost).as_deref(), Some("gone"), "a lost one is never right");
    }

    /// Two GPUs; the second has more errors each time that it is read, and hangs while the lock is held.
    struct TwoGpus {
        reads: Arc<Mutex<u64>>,
    }

    impl ReadGpus for TwoGpus {
        fn gpus(&self) -> Vec<GpuId> {
            [0, 1].map(|index| gpu(index, Some("H200"))).to_vec()
        }

        fn health(&self, uuid: &str) -> Option<GpuHealth> {
            let mut reads = self.reads.lock().unwrap();
            *reads += u64::from(uuid == "GPU-1f");
            Some(GpuHealth { uncorrectable: Some(if uuid == "GPU-1f" { *reads } else { 5 }), ..GpuHealth::default() })
        }
    }

    #[test]
    fn a_driver_that_hangs_holds_nobody_up() {
        const LONG: Duration = Duration::from_secs(60);
        const SHORT: Duration = Duration::from_millis(200);
        let reads = Arc::new(Mutex::new(0));
        let open = |reads: &Arc<Mutex<u64>>| {
            let reads = Arc::clone(reads);
            move || Some(TwoGpus { reads })
        };
        let watch = GpuWatch::start_with(open(&reads), None, 2);
        let healthy = GpuFinding { gpu: "GPU 0 (GPU-0f)".into(), gpus: 2, trouble: None };
        assert_eq!(watch.look(0, LONG), Some(healthy));
        assert_eq!(watch.look(1, LONG).unwrap().trouble.as_deref(), Some("1 uncorrectable ECC error"));
        assert_eq!(watch.look(2, LONG), None);
        let held = reads.lock().unwrap();
        for _ in 0..2 {
            assert_eq!(watch.look(1, SHORT), None);
        }
        assert_eq!(watch.look(1, LONG), None, "at once");
        drop(held);
        while watch.look(0, LONG).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(GpuWatch::start_with(open(&reads), None, 3).look(0, LONG), None, "three workers share two GPUs");
        assert_eq!(GpuWatch::start_with(|| None::<TwoGpus>, None, 1).look(0, LONG), None, "no driver");
    }
}
