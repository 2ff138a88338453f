#include "coordinator/planner/report/html_style.h"

namespace weft::planner {

std::string_view HtmlStyle() {
  // Parts of bars: neighbours differ in lightness too, so that nothing rests on hue alone (hues
  // after Okabe and Ito). No character here may need escaping in XHTML.
  return R"css(
:root {
  --page: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --soft: #5b6470; --rule: #d5d9df; --limit: #c0281c;
  --c0: #2f6db3; --c1: #8fc1e8; --c2: #d98a1f; --c3: #0c7a5e; --c4: #f0d46a; --c5: #a3a9b2; --c6: #c98db3;
  --i0: #ffffff; --i1: #10222f; --i2: #1b1300; --i3: #ffffff; --i4: #2a2400; --i5: #15181c; --i6: #2a0f20;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --panel: #1d2127; --ink: #e8eaed; --soft: #a2abb7; --rule: #353c45; --limit: #ff7b6e;
    --c0: #4d8fd6; --c1: #a9d3f2; --c2: #e39d3a; --c3: #2f9e80; --c4: #f0d97c; --c5: #848c97; --c6: #d79fc2;
    --i0: #07121d; --i1: #10222f; --i2: #1b1300; --i3: #04150f; --i4: #2a2400; --i5: #0d0f12; --i6: #2a0f20;
  }
}
@media print {
  :root {
    --page: #ffffff; --panel: #ffffff; --ink: #000000; --soft: #444444; --rule: #bbbbbb; --limit: #000000;
    --c0: #3a3a3a; --c1: #cfcfcf; --c2: #6f6f6f; --c3: #efefef; --c4: #555555; --c5: #b0b0b0; --c6: #8c8c8c;
    --i0: #ffffff; --i1: #000000; --i2: #ffffff; --i3: #000000; --i4: #ffffff; --i5: #000000; --i6: #000000;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  section { break-inside: avoid; }
  .wide { overflow: visible; }
  table { font-size: 9px; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1160px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Liberation Sans", "DejaVu Sans", Arial, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 10px; margin: 16px 0; padding: 0; }
.fact { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 8px 12px; }
.fact dt { color: var(--soft); font-size: 13px; }
.fact dd { margin: 0; font-size: 18px; font-weight: 600; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.why { min-width: 200px; }
tr.chosen td { font-weight: 600; }
tr.out td { color: var(--soft); }
code { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 12px; overflow-x: auto; }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--soft); }
.legend { font-size: 13px; }
.key { display: inline-block; margin-right: 14px; white-space: nowrap; }
.swatch { width: 12px; height: 12px; margin-right: 5px; vertical-align: -1px; display: inline-block; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--ink); }
svg text.soft { fill: var(--soft); }
svg text.strong { font-weight: 700; }
rect { stroke: var(--page); stroke-width: 0.6; }
.grid { stroke: var(--rule); stroke-width: 1; }
.limit { stroke: var(--limit); stroke-width: 2; stroke-dasharray: 4 2; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); }
svg text.on0 { fill: var(--i0); } svg text.on1 { fill: var(--i1); } svg text.on2 { fill: var(--i2); }
svg text.on3 { fill: var(--i3); } svg text.on4 { fill: var(--i4); } svg text.on5 { fill: var(--i5); }
svg text.on6 { fill: var(--i6); }
.forward { fill: var(--c0); } .backward { fill: var(--c1); } .weights { fill: var(--c2); } .after { fill: var(--c5); }
svg text.in-forward { fill: var(--i0); } svg text.in-backward { fill: var(--i1); } svg text.in-weights { fill: var(--i2); }
.line { fill: none; stroke-width: 2; }
.k0 { stroke: var(--c0); } .k1 { stroke: var(--c2); } .k2 { stroke: var(--c3); } .k3 { stroke: var(--c6); }
.line.k1 { stroke-dasharray: 6 3; } .line.k2 { stroke-dasharray: 2 3; } .line.k3 { stroke-dasharray: 8 3 2 3; }
.dot { stroke-width: 2; fill: var(--page); }
)css";
}

}  // namespace weft::planner
