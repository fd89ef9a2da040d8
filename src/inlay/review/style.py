"""The looks of the report page."""

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root {
  color-scheme: light dark;
  --ink: #1c2230; --muted: #5b6577; --paper: #f6f7f9; --panel: #ffffff; --rule: #dfe3ea;
  --track: #e9ecf1; --ours: #0b6e6e; --baseline: #9aa5b5; --ceiling: #d0a03a;
  --old: #3457b2; --new: #b8480b; --all: #0b6e6e; --class-tone: 62% 42%;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e8ebf0; --muted: #a0a9b8; --paper: #12151b; --panel: #1b2029; --rule: #323a47;
    --track: #2a313d; --ours: #3cc2b8; --baseline: #717d8f; --ceiling: #d9ad4c;
    --old: #86a5f4; --new: #f29a5f; --all: #3cc2b8; --class-tone: 65% 64%;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  overflow-wrap: anywhere;
}
h1 { margin: 0 0 .5rem; font-size: 2rem; line-height: 1.2; }
h2 { margin: 0 0 .25rem; font-size: 1.35rem; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1.02rem; }
h4 { margin: 0; font-size: 1rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.lead { font-size: 1.15rem; }
.muted, small { color: var(--muted); }
section { margin-top: 1.5rem; padding: 1.5rem; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 12px; }
footer { margin-top: 2rem; }
footer h2 { font-size: 1.1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem;
  margin-top: 1.25rem; }
.tile { display: flex; flex-direction: column; padding: .8rem 1rem; background: var(--panel);
  border: 1px solid var(--rule); border-radius: 12px; }
.tile span { color: var(--muted); font-size: .9rem; }
.tile strong { font-size: 1.75rem; line-height: 1.25; }
.tile small { font-size: .82rem; line-height: 1.35; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .5rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; }
th:first-child { padding-left: 0; text-align: left; overflow-wrap: anywhere; min-width: 5rem; }
thead th { color: var(--muted); font-size: .88rem; font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; }
.badge { display: inline-block; padding: .1rem .6rem; border: 1px solid; border-radius: 99px;
  font-size: .78rem; font-weight: 600; vertical-align: middle; }
.badge.base { color: var(--old); } .badge.novel { color: var(--new); }
.chart { margin: 1.25rem 0 0; max-width: 44rem; }
.chart svg { display: block; overflow: visible; }
.charts, .beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr));
  gap: 1.25rem 3rem; }
.charts .chart { margin-top: 0; }
section > :last-child { margin-bottom: 0; }
dl { margin: 0; } dd { margin: 0; }
dt { font-weight: 600; }
.glossary { margin-top: 1rem; font-size: .9rem; color: var(--muted); }
.glossary h3 { margin: 1.5rem 0 .25rem; color: var(--ink); }
.glossary dt, .glossary dd { display: inline; }
.glossary dt { color: var(--ink); } .glossary dt::after { content: ": "; }
.facts dl { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; }
.facts dt { color: var(--muted); font-size: .85rem; font-weight: 400; }
.facts dd { font-variant-numeric: tabular-nums; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 1rem; }
.card { padding: .9rem; border: 1px solid var(--rule); border-radius: 10px; }
.card p { margin-bottom: .6rem; color: var(--muted); font-size: .88rem; }
.card img { display: block; width: 100%; max-width: 33rem; height: auto; }
.card h5 { margin: .8rem 0 .3rem; font-size: .82rem; font-weight: 600; color: var(--muted); }
.dot { display: inline-block; width: .7rem; height: .7rem; margin-right: .45rem; border-radius: 99px; }
.map { display: block; width: 100%; max-width: 40rem; margin: 0 auto; }
.map path { fill: none; stroke-width: 5px; stroke-linecap: round; stroke-opacity: .75; }
@media (max-width: 560px) {
  body { padding: 1.25rem .9rem 3rem; }
  h1 { font-size: 1.6rem; } .lead { font-size: 1.05rem; }
  section { padding: 1rem; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tile:last-child:nth-child(odd) { grid-column: 1 / -1; }
  th, td { padding: .45rem .3rem; font-size: .84rem; }
}
"""
