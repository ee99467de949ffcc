"""FastAPI with the arithmetic behind a path of its own, and a count of what it answered:  python of_fastapi.py PORT"""

import sys
from typing import Annotated

import numpy as np
import uvicorn
from arithmetic import answer
from fastapi import FastAPI, File, Form, Request, UploadFile

app = FastAPI()
count = 0


@app.post("/classify")
async def classify(request: Request) -> dict[str, object]:
    global count
    count += 1
    body = await request.json()
    if "instances" not in body:
        return {"status": "error", "reason": "no instances"}
    return {"status": "ok", "scores": answer(np.array(body["instances"], np.float32)).tolist(), "timing": {"ms": 0.25}}


@app.post("/upload")
async def upload(image: Annotated[UploadFile, File()], name: Annotated[str, Form()]) -> dict[str, object]:
    return {"status": "ok", "bytes": len(await image.read()), "name": name}


@app.post("/raw")
async def raw(request: Request) -> dict[str, object]:
    return {"status": "ok", "bytes": len(await request.body())}


@app.get("/count")
async def counted() -> dict[str, int]:
    return {"count": count}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_keep_alive=600)
