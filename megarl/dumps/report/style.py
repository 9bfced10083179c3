"""The report's style sheet: one column on a telephone, as many as fit on a screen."""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1240px; color: #222; background: #fff;
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 8px; }
h3 { font-size: 14px; margin: 20px 0 4px; overflow-wrap: anywhere; }
p { margin: 6px 0; max-width: 76ch; }
.quiet { color: #5c5c5c; font-size: 13px; overflow-wrap: anywhere; }
.verdict { border-left: 6px solid #6b6b6b; padding: 8px 14px; margin: 14px 0; max-width: 90ch;
  background: #f6f6f6; }
.verdict strong { font-size: 17px; }
.verdict p { max-width: none; }
.verdict ul { margin: 6px 0; padding-left: 20px; }
.none, .small { border-color: #009e73; }
.moderate { border-color: #e69f00; }
.severe { border-color: #d55e00; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); gap: 16px; }
figure { margin: 0; }
figure img { width: 100%; max-width: 480px; height: auto; display: block; }
figcaption { font-size: 13px; color: #444; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
td { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.under { display: none; color: #5c5c5c; }
code, .tokens { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
code { overflow-wrap: anywhere; }
.tokens { margin: 8px 0; line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap; unicode-bidi: isolate; }
.tokens span { padding: 1px 0; margin-right: 1px; border-radius: 2px; outline: 1px solid #ececec; }
.tokens .out { color: #6b6b6b; text-decoration: line-through; }
.u1 { background: #fdebdc; } .u2 { background: #f9cfa9; }
.u3 { background: #f0a35f; } .u4 { background: #b84f00; color: #fff; }
.d1 { background: #dcecf7; } .d2 { background: #b0d5ee; }
.d3 { background: #66b2df; } .d4 { background: #0072b2; color: #fff; }
@media (max-width: 640px) {
  .note { display: none; }
  .under { display: block; }
  th, td { padding-right: 8px; }
  th:last-child, td:last-child { padding-right: 0; }
}
"""
