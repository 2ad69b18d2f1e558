//! A few lines that use an artifact, for each format: they work as they stand, beside the artifact.

use enn_common::artifact::export::{Port, Sidecar};
use enn_export::Target;

/// Rows of the example.
const ROWS: u64 = 2;

/// A program that runs an artifact on two rows, in Python or in what its runtime speaks, and the end of its file's name.
pub fn usage(target: Target, sidecar: &Sidecar) -> (&'static str, String) {
    let file = &sidecar.artifact;
    let shapes: Vec<String> = sidecar.inputs.iter().map(sizes).collect();
    let arrays = |make: &str| -> String {
        let line = |(port, shape): (&Port, &String)| format!("{} = {make}({shape}, dtype=np.float32)\n", port.name);
        sidecar.inputs.iter().zip(&shapes).map(line).collect()
    };
    let named = sidecar.inputs.iter().map(|port| format!("\"{0}\": {0}", port.name)).collect::<Vec<_>>().join(", ");
    let names = sidecar.inputs.iter().map(|port| port.name.clone()).collect::<Vec<_>>().join(", ");
    let numpy = arrays("np.zeros");
    let torch = sidecar.inputs.iter().zip(&shapes);
    let torch: String = torch.map(|(port, shape)| format!("{} = torch.zeros({shape})\n", port.name)).collect();
    // Several outputs are a dictionary in PyTorch, one is itself.
    let several = || format!("outputs[\"{}\"]", sidecar.outputs[0].name);
    let first = if sidecar.outputs.len() > 1 { several() } else { "outputs".to_owned() };
    let here = "pathlib.Path(__file__).parent";
    let python = match target {
        Target::Onnx | Target::Ort => format!(
            "import pathlib\n\nimport numpy as np\nimport onnxruntime\n\n\
             session = onnxruntime.InferenceSession({here} / \"{file}\")\n{numpy}\
             outputs = session.run(None, {{{named}}})\nprint(outputs[0])\n"
        ),
        Target::Pt2 => format!(
            "import pathlib\n\nimport torch\n\nmodel = torch.export.load({here} / \"{file}\").module()\n{torch}\
             outputs = model({names})\nprint({first})\n"
        ),
        Target::Aoti => format!(
            "import pathlib\n\nimport torch\n\nmodel = torch._inductor.aoti_load_package(str({here} / \"{file}\"))\n\
             {torch}outputs = model({names})\nprint({first})\n"
        ),
        Target::Executorch => format!(
            "import pathlib\n\nimport torch\nfrom executorch.runtime import Runtime\n\n\
             program = Runtime.get().load_program({here} / \"{file}\")\n{torch}\
             outputs = program.load_method(\"forward\").execute([{names}])\nprint(outputs[0])\n"
        ),
        Target::Tensorflow => format!(
            "import pathlib\n\nimport numpy as np\nimport tensorflow as tf\n\n\
             model = tf.saved_model.load(str({here} / \"{file}\")).signatures[\"serving_default\"]\n{numpy}\
             outputs = model({})\nprint(outputs[\"{}\"].numpy())\n",
            sidecar.inputs.iter().map(|p| format!("{0}=tf.constant({0})", p.name)).collect::<Vec<_>>().join(", "),
            sidecar.outputs[0].name,
        ),
        Target::Litert => format!(
            "import pathlib\n\nimport numpy as np\nfrom ai_edge_litert.interpreter import Interpreter\n\n\
             interpreter = Interpreter(str({here} / \"{file}\"))\n{numpy}\
             given = {{{named}}}\nfor port in interpreter.get_input_details():\n    \
             interpreter.resize_tensor_input(port[\"index\"], given[port[\"name\"]].shape)\n\
             interpreter.allocate_tensors()\nfor port in interpreter.get_input_details():\n    \
             interpreter.set_tensor(port[\"index\"], given[port[\"name\"]])\ninterpreter.invoke()\n\
             print(interpreter.get_tensor(interpreter.get_output_details()[0][\"index\"]))\n"
        ),
        Target::Coreml => format!(
            "# On macOS.\nimport pathlib\n\nimport coremltools\nimport numpy as np\n\n\
             model = coremltools.models.MLModel(str({here} / \"{file}\"))\n{numpy}\
             outputs = model.predict({{{named}}})\nprint(outputs[\"{}\"])\n",
            sidecar.outputs[0].name,
        ),
        Target::Tensorrt => tensorrt(file, &torch, sidecar),
    };
    ("usage.py", python)
}

fn tensorrt(file: &str, inputs: &str, sidecar: &Sidecar) -> String {
    let bind = |port: &Port| {
        format!(
            "{0} = {0}.cuda()\ncontext.set_input_shape(\"{0}\", tuple({0}.shape))\n\
             context.set_tensor_address(\"{0}\", {0}.data_ptr())\n",
            port.name
        )
    };
    let out = |port: &Port| {
        format!(
            "{0} = torch.empty(tuple(context.get_tensor_shape(\"{0}\")), device=\"cuda\")\n\
             context.set_tensor_address(\"{0}\", {0}.data_ptr())\n",
            port.name
        )
    };
    let (given, answered): (String, String) =
        (sidecar.inputs.iter().map(bind).collect(), sidecar.outputs.iter().map(out).collect());
    format!(
        "import pathlib\n\nimport tensorrt\nimport torch\n\nruntime = tensorrt.Runtime(tensorrt.Logger())\n\
         engine = runtime.deserialize_cuda_engine((pathlib.Path(__file__).parent / \"{file}\").read_bytes())\n\
         context = engine.create_execution_context()\n{inputs}{given}{answered}\
         context.execute_async_v3(torch.cuda.current_stream().cuda_stream)\ntorch.cuda.synchronize()\nprint({})\n",
        sidecar.outputs[0].name
    )
}

/// Sizes of a port for the example's rows, as Python writes them.
fn sizes(port: &Port) -> String {
    let sizes: Vec<String> = port.shape.iter().map(|dim| dim.of(ROWS).to_string()).collect();
    format!("({},)", sizes.join(", "))
}
