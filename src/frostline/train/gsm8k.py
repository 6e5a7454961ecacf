"""GSM8K training questions with worked answers (MIT licence, OpenAI) as chats. Knows nothing of tokens.

Only the training file may be given: the test file is for evaluation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from frostline.errors import ConfigError
from frostline.train.documents import Document, Turn


def gsm8k_documents(path: Path) -> Iterator[Document]:
    """One chat per line of `path`, without calculator marks, ending in "The answer is N.".

    Raises ConfigError for a file whose name says that it is the test set.
    """
    if "test" in path.name:
        raise ConfigError(f"{path.name} looks like the GSM8K test set: train on gsm8k_train.jsonl only")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        work, _, answer = re.sub(r"<<[^>]*>>", "", row["answer"]).partition("####")
        reply = f"{work.strip()}\nThe answer is {answer.strip()}."
        yield Document(kind="gsm8k", turns=(Turn("user", row["question"].strip()), Turn("model", reply)))
