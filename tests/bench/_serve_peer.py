"""A plain server of an exported model, as one writes it with FastAPI: `_serve_peer.py MODEL.pt2 PORT THREADS`."""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

MODEL, PORT, THREADS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(THREADS)
model = torch.export.load(MODEL).module()
app = FastAPI()


class Rows(BaseModel):
    rows: list[list[float]]


@app.get("/health")
def health():
    return {"ready": True}


@app.post("/predict")
def predict(asked: Rows):
    with torch.inference_mode():
        answer = model(torch.tensor(asked.rows))
    answer = next(iter(answer.values())) if isinstance(answer, dict) else answer
    answer = answer[0] if isinstance(answer, tuple) else answer
    return {"rows": answer.flatten(1).tolist()}


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
