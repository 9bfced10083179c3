"""Writes the rows of sums.jsonl: `python recipes/demo/sums.py > recipes/demo/sums.jsonl`.

Half of the solutions are worked out; the others guess at random, so that a policy that imitates them all has
something to learn from rewards.
"""

import json
import random

random.seed(0)
triples = [(a, b, c) for a in range(10, 20) for b in range(1, 10) for c in range(1, 10)]
for a, b, c in random.sample(triples, 700):
    answer = a + b + c
    worked = f"{a}+{b}={a + b};{a + b}+{c}={answer};\\boxed{{{answer}}}"
    guess = f"\\boxed{{{random.randint(12, 37)}}}"
    solution = worked if random.random() < 0.5 else guess
    print(json.dumps({"prompt": f"{a}+{b}+{c}=", "answer": str(answer), "solution": solution}))
