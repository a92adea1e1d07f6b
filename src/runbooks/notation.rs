//! Renders the notation of the runbooks as HTML: headings, paragraphs, lists, indented code, tables; code, emphasis and links within a
//! line. It is the part of Markdown that the runbooks use. Every character of the text is escaped: no HTML passes through.

/// `is_runbook` tells which names are runbooks: links to them lead inside the console. Links to other files of the repository
/// become plain text.
pub fn html(text: &str, is_runbook: impl Fn(&str) -> bool) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::with_capacity(text.len() * 2);
    Renderer { is_runbook: &is_runbook, out: &mut out }.blocks(&lines);
    out
}

struct Renderer<'a> {
    is_runbook: &'a dyn Fn(&str) -> bool,
    out: &'a mut String,
}

/// The indentation of code.
const CODE: &str = "    ";

/// The width of a list item's mark, and whether the items are numbered.
fn mark(line: &str) -> Option<(usize, bool)> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let rest = &line[indent..];
    if rest.starts_with("- ") {
        return Some((indent + 2, false));
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let numbered = (1..=2).contains(&digits) && rest[digits..].starts_with(". ");
    numbered.then_some((indent + digits + 2, true))
}

/// A line without its leading spaces, at most `by` of them.
fn dedented(line: &str, by: usize) -> &str {
    let spaces = line.bytes().take(by).take_while(|byte| *byte == b' ').count();
    &line[spaces..]
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

/// The first line that is not blank and not indented by `by`: a list item ends there.
fn end_of_item(lines: &[&str], by: usize) -> usize {
    let outside = |line: &&str| !is_blank(line) && dedented(line, by).len() + by > line.len();
    lines.iter().position(outside).unwrap_or(lines.len())
}

impl Renderer<'_> {
    fn blocks(&mut self, mut lines: &[&str]) {
        while let Some(line) = lines.first().copied() {
            let used = if is_blank(line) {
                1
            } else if line.starts_with('#') {
                self.heading(line);
                1
            } else if line.starts_with('|') {
                self.table(lines)
            } else if line.starts_with(CODE) {
                self.code(lines)
            } else if let Some((_, numbered)) = mark(line) {
                self.list(lines, numbered)
            } else {
                self.paragraph(lines)
            };
            lines = &lines[used.min(lines.len())..];
        }
    }

    fn heading(&mut self, line: &str) {
        let level = line.bytes().take_while(|byte| *byte == b'#').count().min(6);
        self.out.push_str(&format!("<h{level}>"));
        self.text(line[level..].trim());
        self.out.push_str(&format!("</h{level}>\n"));
    }

    fn paragraph(&mut self, lines: &[&str]) -> usize {
        let ends = |line: &&str| is_blank(line) || line.starts_with(['#', '|']) || starts_list(line);
        let used = lines.iter().skip(1).position(ends).map_or(lines.len(), |n| n + 1);
        self.out.push_str("<p>");
        self.text(&lines[..used].join("\n"));
        self.out.push_str("</p>\n");
        used
    }

    fn code(&mut self, lines: &[&str]) -> usize {
        let used = lines.iter().position(|line| !is_blank(line) && !line.starts_with(CODE)).unwrap_or(lines.len());
        let last = lines[..used].iter().rposition(|line| !is_blank(line)).map_or(used, |n| n + 1);
        self.out.push_str("<pre tabindex=\"0\"><code>");
        for line in &lines[..last] {
            escape(dedented(line, CODE.len()), self.out);
            self.out.push('\n');
        }
        self.out.push_str("</code></pre>\n");
        used
    }

    fn list(&mut self, lines: &[&str], numbered: bool) -> usize {
        let tag = if numbered { "ol" } else { "ul" };
        self.out.push_str(&format!("<{tag}>\n"));
        let mut used = 0;
        while let Some((width, kind)) = lines.get(used).and_then(|line| mark(line))
            && kind == numbered
        {
            let end = used + 1 + end_of_item(&lines[used + 1..], width);
            let mut item = vec![&lines[used][width..]];
            item.extend(lines[used + 1..end].iter().map(|line| dedented(line, width)));
            self.item(&item);
            used = end;
        }
        self.out.push_str(&format!("</{tag}>\n"));
        used
    }

    /// A list item. Its first paragraph stands in the item itself.
    fn item(&mut self, lines: &[&str]) {
        let ends = |line: &&str| is_blank(line) || line.starts_with([' ', '#', '|']) || mark(line).is_some();
        let first = lines.iter().position(ends).unwrap_or(lines.len()).max(1).min(lines.len());
        self.out.push_str("<li>");
        self.text(&lines[..first].join("\n"));
        self.out.push('\n');
        self.blocks(&lines[first..]);
        self.out.push_str("</li>\n");
    }

    fn table(&mut self, lines: &[&str]) -> usize {
        let used = lines.iter().position(|line| !line.starts_with('|')).unwrap_or(lines.len());
        self.out.push_str("<div class=\"table\" tabindex=\"0\"><table>\n");
        for (n, line) in lines[..used].iter().enumerate().filter(|(_, line)| !is_rule(line)) {
            let (tag, open) = if n == 0 { ("th", "<th scope=\"col\">") } else { ("td", "<td>") };
            self.out.push_str("<tr>");
            for cell in cells(line) {
                self.out.push_str(open);
                self.text(cell.trim());
                self.out.push_str(&format!("</{tag}>"));
            }
            self.out.push_str("</tr>\n");
        }
        self.out.push_str("</table></div>\n");
        used
    }

    /// The marks within a line. A mark without an end is text.
    fn text(&mut self, mut rest: &str) {
        while let Some(at) = rest.find(['`', '*', '[']) {
            escape(&rest[..at], self.out);
            rest = &rest[at..];
            match self.marked(rest) {
                Some(after) => rest = after,
                None => {
                    self.out.push_str(&rest[..1]);
                    rest = &rest[1..];
                }
            }
        }
        escape(rest, self.out);
    }

    /// Renders the text between a mark and its end, and returns the rest. Marks need no escape.
    fn marked<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        if let Some(rest) = text.strip_prefix('`') {
            let (code, rest) = rest.split_once('`')?;
            self.out.push_str("<code>");
            escape(&code.replace('\n', " "), self.out);
            self.out.push_str("</code>");
            return Some(rest);
        }
        for (mark, tag) in [("**", "strong"), ("*", "em")] {
            let Some(rest) = text.strip_prefix(mark) else { continue };
            let (inner, rest) = rest.split_once(mark)?;
            if inner.is_empty() || inner.starts_with(char::is_whitespace) {
                return None;
            }
            self.out.push_str(&format!("<{tag}>"));
            self.text(inner);
            self.out.push_str(&format!("</{tag}>"));
            return Some(rest);
        }
        let (label, rest) = text.strip_prefix('[')?.split_once("](")?;
        if label.contains(['[', ']']) {
            return None;
        }
        let (target, rest) = rest.split_once(')')?;
        match self.address(target) {
            Some(address) => {
                self.out.push_str("<a href=\"");
                escape(&address, self.out);
                self.out.push_str("\">");
                self.text(label);
                self.out.push_str("</a>");
            }
            None => self.text(label),
        }
        Some(rest)
    }

    /// The address of a link, if it leads to another runbook or out of the repository.
    fn address(&self, target: &str) -> Option<String> {
        if target.starts_with("https://") {
            return Some(target.to_owned());
        }
        let name = target.split('#').next()?.strip_suffix(".md")?;
        (self.is_runbook)(name).then(|| format!("/admin/runbooks/{name}"))
    }
}

/// The line between a table's head and its rows.
fn is_rule(row: &str) -> bool {
    row.bytes().all(|byte| b"|-: ".contains(&byte))
}

/// Whether a list begins in the middle of a paragraph. A wrapped line may begin with a number that belongs to the sentence.
fn starts_list(line: &str) -> bool {
    line.starts_with("- ") || line.starts_with("1. ")
}

/// The cells of a table's row. A bar inside code is not a border.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').unwrap_or(row);
    let (mut cells, mut in_code) = (vec![String::new()], false);
    for c in row.chars() {
        in_code ^= c == '`';
        if c == '|' && !in_code {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(c);
        }
    }
    cells
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        html(text, |name| name == "parked").replace('\n', "")
    }

    #[test]
    fn headings_paragraphs_and_marks() {
        assert_eq!(
            rendered("# A `b`\n\nc\nd **e** *f*."),
            "<h1>A <code>b</code></h1><p>cd <strong>e</strong> <em>f</em>.</p>"
        );
        assert_eq!(rendered("5 * 3 and [x] and `open"), "<p>5 * 3 and [x] and `open</p>");
    }

    #[test]
    fn lists_hold_code_and_lists() {
        let text = "1. one\n   more:\n\n       $ x <y>\n\n   - a\n   - b\n2. two\n";
        let html = "<ol><li>onemore:<pre tabindex=\"0\"><code>$ x &lt;y&gt;</code></pre><ul><li>a</li><li>b</li></ul></li>\
                    <li>two</li></ol>";
        assert_eq!(rendered(text), html);
        assert_eq!(rendered("- a\n- b\n\nc"), "<ul><li>a</li><li>b</li></ul><p>c</p>");
    }

    #[test]
    fn tables_have_a_head() {
        let row = "<tr><td>1</td><td><code>a|b</code></td></tr>";
        let html = format!(
            "<div class=\"table\" tabindex=\"0\"><table><tr><th scope=\"col\">x</th><th scope=\"col\"></th></tr>{row}</table></div>"
        );
        assert_eq!(rendered("| x | |\n|---|---|\n| 1 | `a|b` |"), html);
    }

    #[test]
    fn links_lead_to_runbooks_or_out() {
        assert_eq!(rendered("[a](parked.md#x)"), "<p><a href=\"/admin/runbooks/parked\">a</a></p>");
        assert_eq!(rendered("[a](../monitoring.md) [b](javascript:alert)"), "<p>a b</p>");
        assert_eq!(rendered("[a](https://x/\"y)"), "<p><a href=\"https://x/&quot;y\">a</a></p>");
    }

    #[test]
    fn no_html_passes() {
        for text in [
            "<script>",
            "# <script>",
            "- <script>",
            "    <script>",
            "| <script> |",
            "`<script>`",
            "[<script>](parked.md)",
        ] {
            assert!(!rendered(text).contains("<script"), "{text}");
        }
    }

    /// Any text is rendered, and rendering ends.
    #[test]
    fn odd_texts_are_rendered() {
        for text in [
            "", "\n\n", "-", "- ", "1.", "12. ", "|", "||", "#", "*", "**", "****", "`", "[", "[a](", "   - ",
            "\u{a0}x",
        ] {
            rendered(text);
        }
    }
}
