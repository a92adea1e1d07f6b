//! Renders the Markdown of the runbooks. Every character of the text is escaped: no HTML passes through.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html::push_html};

/// Links to runbooks lead inside the console. Links to other files of the repository become plain text.
pub(crate) fn html(text: &str, is_runbook: impl Fn(&str) -> bool) -> String {
    let mut links = Vec::new();
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Html(html) | Event::InlineHtml(html) => Some(Event::Text(html)),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let address = address(&dest_url, &is_runbook);
            links.push(address.is_some());
            address.map(|address| Event::Start(Tag::Link { link_type, dest_url: address.into(), title, id }))
        }
        Event::End(TagEnd::Link) => links.pop()?.then_some(event),
        _ => Some(event),
    });
    let mut out = String::with_capacity(text.len() * 2);
    push_html(&mut out, events);
    // Text is escaped, so these tags are the renderer's. Wide tables and code scroll by the keyboard.
    [
        ("<pre>", "<pre tabindex=\"0\">"),
        ("<table>", "<div class=\"table\" tabindex=\"0\"><table>"),
        ("</table>", "</table></div>"),
        ("<th>", "<th scope=\"col\">"),
    ]
    .iter()
    .fold(out, |out, (plain, full)| out.replace(plain, full))
}

fn address(target: &str, is_runbook: impl Fn(&str) -> bool) -> Option<String> {
    if target.starts_with("https://") {
        return Some(target.to_owned());
    }
    let name = target.split('#').next()?.strip_suffix(".md")?;
    is_runbook(name).then(|| format!("/admin/runbooks/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        html(text, |name| name == "parked").replace('\n', "")
    }

    #[test]
    fn links_lead_to_runbooks_or_out() {
        assert_eq!(rendered("[a](parked.md#x)"), "<p><a href=\"/admin/runbooks/parked\">a</a></p>");
        assert_eq!(rendered("[a](../monitoring.md) [b](javascript:alert)"), "<p>a b</p>");
        assert_eq!(rendered("[a](https://x/\"y)"), "<p><a href=\"https://x/%22y\">a</a></p>");
    }

    #[test]
    fn no_html_passes() {
        for wrapped in ["<script>", "# <script>", "    <script>", "`<script>`", "[<script>](parked.md)", "a <script> b"]
        {
            assert!(!rendered(wrapped).contains("<script"), "{wrapped}");
        }
        let table = rendered("| <script> | |\n|---|---|\n| 1 | `a` |");
        assert!(table.contains("<th scope=\"col\">") && !table.contains("<script"), "{table}");
    }
}
