#!/usr/bin/env python3
"""Keeps retired names, words that the field does not use and long paragraphs out of the tree.

    tests/terms.py

Fails when a name of NAMES comes back in source or pages or one of PARTS within a longer name, when a
word of WORDS comes back in a page or one of COMMENTS in a comment or a text of a source, or when a
paragraph of a page is longer than LONGEST characters. Prints file:line and what to use instead.
A rename adds a row to NAMES, or to PARTS where longer names can have it in them.
"""

import fnmatch
import functools
import os
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
LONGEST = 600


class Retired(NamedTuple):
    pattern: str  # whole words as a regular expression; a space also matches a line break
    term: str  # what to use instead
    stays: tuple[str, ...] = ()  # globs of files where the pattern is allowed


NAMES = [
    Retired(r"GrowthHistory", "AttemptHistory"),
    Retired(r"TensorKeeper", "SavedTensorPolicy"),
    Retired(r"ParameterResidence|parameter_residence", "ParameterPrefetcher"),
    Retired(r"WeightArrival|weight_arrival", "ParameterUploader"),
    Retired(r"ParameterFeed|parameter_feed", "UpdatePipeline"),
    Retired(r"ParameterWalk|UnitWalk|parameter_walk", "ParameterFileIterator, UnitIterator"),
    Retired(r"LinkLane|link_lane", "TransferQueue"),
    Retired(r"(?:In)?HostTier(?:Of)?|(?:in_)?host_tier", "HostMemoryPool"),
    Retired(r"DevicePassage|device_passage", "DeviceStaging"),
    Retired(r"EnterShards", "CopyToTensorParallelRegion"),
    Retired(r"LeaveShards", "ReduceFromTensorParallelRegion"),
    Retired(r"HeldChain|held_chain", "InFlightChain"),
    Retired(r"PipelineHoldings|pipeline_holdings", "InFlightActivations"),
    Retired(r"BookedChain|ChainBook|chain_book", "CachedChain, ChainCache"),
    Retired(r"ScheduleBook|schedule_book", "ScheduleCache"),
    Retired(r"AgreeOnWay|OfferWay", "NegotiateMode, VoteForMode"),
    Retired(r"of_summands|SetOfSummands|HasSummands", "partial_gradient, HasPartialGradients"),
    Retired(r"[Ss]harers(?:Of|_)?", "shard_ranks, ShardGroupSize, the group's own name"),
    Retired(r"FindShare|Share(?:Record|State|Event|Transitions?|Activity|Track|Report)",
            "FindPlacement, PlacementRecord, PlacementState, ..."),
    Retired(r"misfit(?:s|ting)?|Misfit|kMisfittingShown", "infeasible, infeasible_reason",
            ("worker/engine/nn/token_batch.cc",)),
    Retired(r"ChainStage::Way", "ChainStage::Mode"),
    Retired(r"time_model|device_time|rate_model", "pass_cost, step_time, step_rates"),
    Retired(r"CudaMemoryInputs", "MemoryInputsOf"),
    Retired(r"techniques/rematerialisation\.md", "techniques/activation_recomputation.md"),
    Retired(r"techniques/tensor_grid\.md", "techniques/tensor_parallel_2d.md"),
    Retired(r"techniques/local_steps\.md", "techniques/local_sgd.md"),
    Retired(r"ParameterRegions?|PlaceRegion", "FlatParameters, FlatParameter"),
    Retired(r"HeldSchedule", "CachedSchedule"),
    Retired(r"CollectiveBooks|LedgerBook", "CollectiveAccounts, LedgerAccount"),
    Retired(r"BetterWay", "PlanChange"),
    Retired(r"SharerCount", "ShardGroupSize"),
    Retired(r"GrowthRules|FindGrowth|MayGrow|BeforeGrowth|FindWayBack|scheduler/growth",
            "ScaleUpRules, FindScaleUp, MayScaleUp, BeforeScaleUp, FindScaleBack, elastic_resize"),
    Retired(r"grow_after_seconds|GROW_AFTER_SECONDS|grow-after-seconds", "scale_up_after_seconds"),
    Retired(r"deals_out(?:_rows)?_?|DealOut", "shards_tokens, shards_rows, ScatterTokens"),
    Retired(r"Coded(?:Blocks?|Bytes|ActivationBytes)|coded_(?:blocks?|bytes)|activation_codes",
            "CompressedBlocks, compressed_bytes, compressed_activations"),
    Retired(r"k?TensorGrid", "kTensorParallel2d"),
    Retired(r"planner::Option|planner/option|OptionOf", "CostedPlan, CostedPlanOf"),
    Retired(r"Having(?:Of|::\w+)", "FamilyMeshesOf, FamilyMeshes"),
    Retired(r"ExpertWays", "ExpertRunConfig"),
    Retired(r"KeptUnits|kept_units_test", "DeviceUpdatedUnits, device_updated_units"),
    Retired(r"collective_books|books?_", "collective_accounts, the account, the cache"),
    Retired(r"Travels|travelling|EachTravel", "Transfers, in_transfer, offloaded"),
    Retired(r"InBits|in_bits|DealtOut|CheckDealtOut|[Dd]ealer|of_dealt",
            "compressed activations, IsTokenShard, sequence parallel, HeadExchange"),
    Retired(r"LayOutRegions|CutRegions|region_of_copies_", "flat parameters, buckets"),
    Retired(r"kept_units_", "device_updated_units_"),
    Retired(r"put_off_?|PutOff(?:Weights|Bytes|InFormat)|MlpWorkspacePutOff", "deferred_, Deferred..."),
    Retired(r"(?:Await|Wait|Finish|AllReduced|Fits|Held)Beside|RunBesides|RunBesideTransfers",
            "AwaitUncounted, FinishInBackground, RunOverlapped, ..."),
    Retired(r"HolesBeside(?:Codes|Tables)|SavedBesideScores|BesideBest|kBeside(?:SubLayer|ThePass)",
            "FragmentationOf..., kParallelToSubLayer, kOverlappedWithPass"),
    Retired(r"InFlightActivations::Beside", "NonPassBytes"),
    Retired(r"passage_|KeysOnTheWay|NumbersOnTheWay", "transfer_, RingKeysValues, NumbersInFlight"),
    Retired(r"(?:Is)?WayOf|SameWay|WaysOf|way_bytes_|on_way_",
            "IsNeededBy, ParallelismOf, SameParallelism, part_bytes_, last_download_"),
    Retired(r"(?:Update|MostMessages|MicroBatches|kTiles|kMost)?UnderWay|under_way_?", "InFlight, in_flight"),
    Retired(r"GrowthTest", "ScaleUpTest"),
    Retired(r"(?:Bright|Prepare|Recorded)?Pictures|(?:Is|Timeline|Sensitivity)?Picture"
            r"|Picture(?:File|Writer|Input)", "Images, ImageFile, TimelineChart, ..."),
    Retired(r"Tell(?:Losses|WrongBits|Memory)|told_broken_|MostTelling|(?:State)?TellsBlocksApart",
            "ReportLosses, LogMemory, MostInformative, DiffersByBlock, ..."),
    Retired(r"activations_away|away_", "offloaded_activations, offloaded_"),
    Retired(r"RunBeside", "DeferForOverlap"),
    Retired(r"beside_", "overlapped_, backward_workspace_"),
    Retired(r"told_", "acknowledged_, announced_steps_, reported_collectives_"),
    Retired(r"EnterFeatures|LeaveFeatures", "CopyToFeatureRegion, ReduceFromFeatureRegion"),
    Retired(r"(?:\w+::)?Tell(?=\()", "ReportActivity, ReportEvent, ReportFile, SendReply"),
    Retired(r"OpenWay", "OpenChannel"),
    Retired(r"PipelineParallel::Way|(?:struct|enum class|const) Ways?|JobOfWay|kWays",
            "Direction, RunConfig, RouteOptions, NamedVariants"),
]

# Words of longer names, as CamelCase has them; found in snake_case, too.
PARTS = [
    Retired(r"TensorGrids?", "TensorParallel2d"),
    Retired(r"Beside", "NextTo, With, During, InBackground"),
    Retired(r"Puts?Off", "Deferred"),
    Retired(r"UnderWay|OnTheWay", "InFlight"),
    Retired(r"(?:Shares?|Shared|Sharing|Deals?|Dealt|Dealing)Out", "Sharded, Partition"),
    Retired(r"Sharers?", "ShardRanks"),
    Retired(r"ButFor", "Except"),
    Retired(r"OfWhich", "a name in another order"),
    Retired(r"SoMany", "N, NumberOf"),
    Retired(r"Pictures?", "Image, Chart"),
    Retired(r"Summands?", "PartialSum, Term"),
    Retired(r"Travel(?:s|led|ling)?", "Sent, Offloaded"),
    Retired(r"Stand(?:s|ing)?(?!For|_for)|StoodStill", "Is, Resides, Comes, Waits"),
    Retired(r"(?:Is|Are|Was|Were|Be)Told", "IsReported, Learns"),
    Retired(r"ToldApart", "Distinguished"),
    Retired(r"Somebody|Anybody", "Caller, Thread, Rank"),
    Retired(r"Misfits?", "Infeasible"),
    Retired(r"HostTiers?", "HostMemoryPool"),
    Retired(r"HeldChains?|ChainBooks?", "InFlightChain, ChainCache"),
]

# Names with one of PARTS that stay, and why.
STAYING = {
    "beside_share": "calibrations that are recorded in files have it (docs/benchmarks/own_runs.json)",
}

COMMENTS = [
    Retired(r"(?:ranks|those) that (?:share|shared) (?:the |their |its )?"
            r"(?:matrices|sequences|experts|blocks|updates|state|parameters|tokens)",
            "tensor-, context-, expert-, pipeline- or data-parallel ranks, shard group"),
    Retired(r"ranks share (?:the |their )?(?:matrices|sequences|experts|updates|tokens)",
            "tensor-, context-, expert- or data-parallel ranks, shard"),
    Retired(r"(?:that )?see (?:other|different) (?:sequences|tokens|documents)",
            "data-parallel ranks"),
    Retired(r"pictures?", "images; charts"),
    Retired(r"summands?", "terms, partial sums"),
    Retired(r"FP8 codes|(?:into|from|to|of|beside) codes", "quantised values"),
    Retired(r"(?:in )?a? ?few bits", "quantised, compressed"),
    Retired(r"put off", "deferred"),
    Retired(r"(?:shares?|shared|sharing|deals?|dealt) out", "shards, partitions"),
    Retired(r"(?:is|are|was|were|be) told", "is reported, receives"),
    Retired(r"told apart", "distinguished"),
    Retired(r"somebody|anybody", "the caller, a thread, a rank"),
    Retired(r"the books?", "the account, the cache"),
    Retired(r"turned (?:queries|keys|heads)", "rotated"),
    Retired(r"stand(?:s|ing)?(?! for|-in)|stood still", "is, resides, comes, waits"),
    Retired(r"beside", "next to, with, besides, compared with, overlapped with"),
    Retired(r"travel(?:s|led|ling)?", "is offloaded, sent, copied"),
    Retired(r"but for", "except"),
    Retired(r"so many(?! (?:\w+ ){0,2}that)", "this many, N, the number of"),
    Retired(r"of which", "whose; a clause of its own"),
]

WORDS = [
    Retired(r"ranks that share (?:the )?(?:matrices|sequences|experts|blocks|tensors|a model)",
            "tensor-, context-, expert- or pipeline-parallel ranks"),
    Retired(r"ranks that (?:share updates|see (?:other|different) sequences)",
            "data-parallel ranks, shard group"),
    Retired(r"(?:shares?|shared|sharing|deals?|dealt) out", "shards, partitions"),
    Retired(r"ranks that rarely meet", "local SGD (DiLoCo)"),
    Retired(r"summands?", "partial sums, partial gradients"),
    Retired(r"(?<!exit.)(?<!status.)codes", "quantised values, compressed activations"),
    Retired(r"few bits", "compressed, quantised"),
    Retired(r"beside", "alongside, next to, overlapped with, except"),
    Retired(r"stand(?:s|ing)?", "is, resides"),
    Retired(r"put off", "deferred"),
    Retired(r"but for", "except"),
    Retired(r"so (?:many|long|much) (?:steps|before|ago|after|is|are|as|to)", "N, this long"),
    Retired(r"of which", "a clause of its own"),
    Retired(r"(?:is|are|was|were|be) told", "is reported, receives"),
    Retired(r"pictures?", "images; drawings, charts"),
    Retired(r"somebody|anybody", "the caller, something"),
    Retired(r"turned (?:queries|keys|heads)", "rotated"),
    Retired(r"growth of (?:jobs|ranks)", "scale-up"),
]

# Pages that tests write, and results of benchmarks.
OTHER_PAGES = ("docs/compatibility.md", "docs/job_reference.md", "docs/benchmarks/*")
# A page with lists that a benchmark writes.
LONG_PAGES = ("docs/benchmarks/planner_accuracy.md",)
SOURCES = ("common", "kernels", "worker", "coordinator", "cli", "proto", "deploy", "docs", "tests")
SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".def", ".proto", ".py", ".sh", ".txt", ".md", ".yaml"}


def files():
    """Paths of sources, scripts and pages, relative to the root."""
    yield from sorted(path.name for path in ROOT.glob("*.md"))
    yield "CMakeLists.txt"
    for top in SOURCES:
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in sorted(names):
                path = os.path.join(folder, name)
                suffix = os.path.splitext(name)[1]
                if suffix in SUFFIXES or not suffix and os.access(path, os.X_OK):
                    yield os.path.relpath(path, ROOT)


def matches(any_of, path):
    return any(fnmatch.fnmatch(path, pattern) for pattern in any_of)


def expression(rows, flags=0):
    """Any of the rows as whole words. Without groups, which would make it many times as slow."""
    patterns = "|".join(row.pattern for row in rows)
    return re.compile(rf"\b(?:{patterns})\b".replace(" ", r"\s+"), flags)


def part_expression(rows):
    """Any of the rows as words of a name, which is the match: of CamelCase, or of snake_case."""
    camel = "|".join(row.pattern for row in rows)
    snake = re.sub(r"(?<=[a-z?)])(?=[A-Z])", "_", camel).lower()
    return re.compile(rf"(?:{camel})(?![a-z])|(?<![A-Za-z])(?:{snake})(?![A-Za-z])")


def at(path, text, start):
    return f"{path}:{text.count(chr(10), 0, start) + 1}"


def found(any_of, rows, path, text):
    """Lines of text in which a row's pattern is."""
    for match in any_of.finditer(text):
        row = next(row for row in rows if expression([row], any_of.flags).match(text, match.start()))
        if not matches(row.stays, path):
            words = " ".join(match[0].split())
            yield f"{at(path, text, match.start())}: \"{words}\" is retired; hint: {row.term}"


def retired_part(any_of, rows, name):
    """What is wrong with a name of several words of which a row's pattern is some; "": nothing."""
    match = any_of.search(name)
    if match is None or name in STAYING or not re.search(r"[a-z][A-Z]|[A-Za-z]_[A-Za-z]", name):
        return ""
    row = next(row for row in rows if part_expression([row]).search(name))
    return f"\"{match[0]}\" of {name} is retired; hint: {row.term}"


def found_parts(problem_of, path, text):
    """Lines of text with a name that `problem_of` finds wrong."""
    for name in sorted(set(re.findall(r"\w{6,}", text))):
        if problem_of(name):
            for match in re.finditer(rf"\b{name}\b", text):
                yield f"{at(path, text, match.start())}: {problem_of(name)}"


def comments(text):
    """The text of a C++ or proto file with blanks in the place of code, also of code in comments."""
    return "\n".join(re.sub(r"^(?:[^\"/]|\"(?:[^\"\\]|\\.)*\"|/(?!/))*|`[^`]*`",
                            lambda code: " " * len(code[0]), line)
                     for line in text.split("\n")).replace("//", "  ")


LITERAL = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|\'(?:[^\'\\\n]|\\.)+\'|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


def literals(text):
    """The text of a C++ file without what is not in literals: other code is a sign that parts what
    comes before and after it, comments and the quotes of literals that follow one another are blank."""
    def code(part):
        return re.sub(r"\S", "\0", part)
    parts, end = [], 0
    for match in LITERAL.finditer(text):
        parts.append(code(text[end:match.start()]))
        end, token = match.end(), match[0]
        if token[0] == '"':
            parts.append(" " + re.sub(r"\\.", "  ", token[1:-1]) + " ")
        else:
            parts.append(token if token[0] == "R" else re.sub(r"\S", " ", token))
    return "".join(parts) + code(text[end:])


def is_python(path):
    """Whether it is a script of Python. One without a suffix is a benchmark's."""
    return path.endswith(".py") or "." not in path


def hash_comments(path, text):
    """The text of a script or of YAML without what is not in comments; of Python also what three
    quotes begin, which is its documentation."""
    kept = r'(?<!\S)#[^\n]*|"""(?:(?!""").)*"""' if is_python(path) else r"(?<!\S)#[^\n]*"
    parts, end = [], 0
    for match in re.finditer(kept, text, re.DOTALL):
        parts.append(re.sub(r"\S", " ", text[end:match.start()]))
        parts.append(re.sub(r"`[^`\n]*`", lambda code: " " * len(code[0]), match[0]).replace("#", " "))
        end = match.end()
    return "".join(parts)


def prose(text):
    """The text of a page with blanks in the place of code and addresses of links."""
    def blank(match):
        return re.sub(r"\S", " ", match[0])
    for code in (r"^```.*?^```", r"^    .*?$", r"`[^`]*`", r"\]\([^)]*\)", r"<!--.*?-->"):
        flags = re.MULTILINE | re.DOTALL if code.startswith(("^```", "<")) else re.MULTILINE
        text = re.sub(code, blank, text, flags=flags)
    return text


def long_paragraphs(path, text):
    """Paragraphs and items of lists that are too long; code, tables and headings are none."""
    code, first, paragraph = False, 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        line = line.strip()
        fence = line.startswith("```")
        ends = code or fence or not line or line[0] in "|#"
        if ends or re.match(r"(?:-|\d+\.) ", line):
            length = len(" ".join(paragraph))
            if length > LONGEST:
                yield (f"{path}:{first}: a paragraph of {length} characters"
                       f"; hint: at most {LONGEST}; split it, or make it a list or a table")
            paragraph = []
        code ^= fence
        if not ends:
            first = first if paragraph else number
            paragraph.append(line)


def main():
    names, words = expression(NAMES), expression(WORDS, re.IGNORECASE)
    in_comments = expression(COMMENTS, re.IGNORECASE)
    problem_of = functools.cache(functools.partial(retired_part, part_expression(PARTS), PARTS))
    problems = []
    for path in files():
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        if path != "tests/terms.py":
            problems += found(names, NAMES, path, text)
            problems += found_parts(problem_of, path, text)
        if path.endswith((".h", ".cc", ".cu", ".cuh", ".proto")):
            problems += found(in_comments, COMMENTS, path, comments(text))
        if path.endswith((".h", ".cc", ".cu", ".cuh")):
            problems += found(in_comments, COMMENTS, path, literals(text))
        scripts = is_python(path) or path.endswith((".sh", ".yaml", "CMakeLists.txt"))
        if scripts and path != "tests/terms.py":
            problems += found(in_comments, COMMENTS, path, hash_comments(path, text))
        if path.endswith(".md"):
            if not matches(OTHER_PAGES, path):
                problems += found(words, WORDS, path, prose(text))
            if not matches(LONG_PAGES, path):
                problems += long_paragraphs(path, text)
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
