"""The style of a report's page. Colours are never all there is: each has a word or a sign, too."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--line:#d5dbe1;--link:#0a58ca;
--error:#b3261e;--warning:#8a5a00;--info:#2f5d8a;--unknown:#59636e;--ok:#1a7f37;
--s0:#cfe3ee;--s1:#cdbdea;--s2:#c9251d;--s3:#f3a75f;--s4:#4a4f55;--dark:#1b1f24}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ee;--soft:#9aa5b1;--paper:#12161b;--card:#1a2027;--line:#323b45;--link:#7ab4ff;
--error:#ff8a80;--warning:#f0b849;--info:#8ab8e8;--unknown:#9aa5b1;--ok:#5fd07f;--s0:#2d4a5c;--s1:#54427a;--s2:#d8453c;--s3:#9a5a16;
--s4:#8b949e;--dark:#e3e8ee}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1.5rem 1.25rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 .4rem}h2{font-size:1.2rem;margin:2.4rem 0 .8rem;padding-bottom:.3rem;
border-bottom:1px solid var(--line)}h3{font-size:1rem;line-height:1.4;margin:0 0 .4rem}p{margin:.4rem 0}
a{color:var(--link)}nav{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:1rem 0 0;font-size:.9rem}nav a{text-decoration:none}
.facts,.more,footer,figcaption{color:var(--soft);font-size:.88rem}figcaption b{color:var(--ink)}
.verdict{border-left:5px solid var(--level);background:var(--card);padding:1rem 1.2rem;margin:.8rem 0;border-radius:0 6px 6px 0}
.verdict h1{color:var(--level)}.next b{display:inline-block;margin-right:.4rem}
.error{--level:var(--error)}.warning{--level:var(--warning)}.info{--level:var(--info)}.unknown{--level:var(--unknown)}
.ok{--level:var(--ok)}
article{border:1px solid var(--line);border-radius:6px;padding:.9rem 1.1rem;margin:0 0 .9rem}
.finding{border-left:4px solid var(--level)}
.tag{color:var(--level);border:1px solid var(--level);border-radius:3px;padding:0 .35rem;font-size:.78rem;font-weight:600;
text-transform:uppercase;letter-spacing:.03em;margin-right:.3rem}
ul{margin:.5rem 0;padding-left:1.2rem}li{margin:.15rem 0}
dl{display:grid;grid-template-columns:6.2rem 1fr;gap:.25rem .8rem;margin:.6rem 0 0;font-size:.93rem}
dt{color:var(--soft)}dd{margin:0}
.scroll{overflow-x:auto;max-width:100%}
.end{direction:rtl}.end svg{direction:ltr;margin-right:auto}
table{border-collapse:collapse;font-size:.88rem;width:100%}th{text-align:left;color:var(--soft);font-weight:500}
th,td{padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:normal}
td:last-child{overflow-wrap:anywhere}
.story td:first-child{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.story td:nth-child(2){white-space:nowrap}
figure{margin:1.2rem 0}svg{display:block;margin:.3rem 0}
svg text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink)}
svg .strong{font-weight:700}.grid{stroke:var(--line)}
.s0{fill:var(--s0);background:var(--s0)}.s1{fill:var(--s1);background:var(--s1)}.s2{fill:var(--s2);background:var(--s2);color:#fff}
.s3{fill:var(--s3);background:var(--s3)}.s4{fill:var(--s4);background:var(--s4);color:var(--paper)}
svg .ts2{fill:#fff;font-weight:700}svg .ts4{fill:var(--paper)}
.stay{fill:var(--s0);stroke:var(--line)}.stay.open{fill:var(--s3)}svg .in{fill:var(--dark)}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.88rem}
.legend i{display:inline-block;width:1.5rem;text-align:center;font-style:normal;margin-right:.4rem;
border-radius:2px;min-height:1.2em;line-height:1.2;vertical-align:middle}
footer{margin-top:2.5rem;border-top:1px solid var(--line);padding-top:.7rem}
@media(max-width:40rem){body{padding:1rem .8rem 2rem;font-size:15px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}
article{padding:.7rem .8rem}th,td{padding-right:.6rem}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb;--link:#000;--error:#b3261e;
--warning:#8a5a00;--info:#2f5d8a;--unknown:#444;--ok:#1a7f37;--s0:#cfe3ee;--s1:#cdbdea;--s2:#c9251d;--s3:#f3a75f;--s4:#4a4f55;--dark:#000}
body{max-width:none;padding:0;font-size:10.5pt}nav{display:none}.scroll{overflow:visible}svg{max-width:100%;height:auto}
svg,i,.tag{print-color-adjust:exact;-webkit-print-color-adjust:exact}article,figure,tr{break-inside:avoid}h2,h3{break-after:avoid}
.story tr{break-inside:avoid}article:has(.story){break-inside:auto}}
"""
