"""The programs of _programs.py: small models that transformers' and Lightning's own loops train, as people write them.

Each keeps checkpoints below $OUT, begins from the newest one, prints its losses, and says what it ended with. With the variable FAILS
rank 1 raises an exception in the middle of the first attempt.
"""

from _launcher_programs import TRAIN

# Behind the import of the library, which may set variables that torch reads when it is imported.
FAILING = TRAIN + """
FAILS = os.environ.get("FAILS") and RANK == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def fail():
    raise RuntimeError("the cause")
"""

TRANSFORMERS = """
import transformers
""" + FAILING + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, row):
        tokens = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": tokens, "labels": tokens}
class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs, **more):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.6f}", flush=True)
    def on_step_end(self, args, state, control, **more):
        if FAILS and state.global_step == 5:
            fail()
set_seed(0)
net = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
out = os.environ["OUT"] + "/checkpoints"
arguments = TrainingArguments(out, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=4, num_train_epochs=1, learning_rate=1e-2,
                              logging_steps=1, save_steps=2, report_to=[], disable_tqdm=True, ddp_find_unused_parameters=False)
trainer = Trainer(net, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Watch()])
newest = get_last_checkpoint(out) if os.path.isdir(out) else None
trainer.train(resume_from_checkpoint=newest)
say({"weights": digest(net.parameters()), "loss": trainer.evaluate()["eval_loss"], "step": trainer.state.global_step,
     "processes": arguments.world_size, "began": newest and Path(newest).name})
dist.destroy_process_group()
"""

LIGHTNING = """
import lightning
""" + FAILING + """
from lightning.pytorch.callbacks import ModelCheckpoint
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model()
        self.losses = []
    def training_step(self, batch, index):
        if FAILS and self.global_step == 5:
            fail()
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        print(f"step {self.global_step} loss {loss.item():.6f}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)
lightning.seed_everything(0)
rows = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 4))
net = Net()
checkpoints = ModelCheckpoint(os.environ["OUT"] + "/checkpoints", save_last=True, every_n_epochs=1)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, deterministic=True, logger=False,
                            callbacks=[checkpoints], enable_progress_bar=False, enable_model_summary=False)
newest = Path(os.environ["OUT"]) / "checkpoints" / "last.ckpt"
trainer.fit(net, torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True), ckpt_path=str(newest) if newest.exists() else None)
say({"weights": digest(net.parameters()), "loss": net.losses[-1], "step": trainer.global_step, "processes": trainer.world_size,
     "began": 8 - len(net.losses), "environment": type(trainer.strategy.cluster_environment).__name__})
dist.destroy_process_group()
"""
