//! The elements of every page: the document with its style, the head, warnings, sections and figures.

use super::html::Html;

const STYLE: &str = include_str!("report.css");

pub(super) fn document(title: &str, inner: impl FnOnce(&mut Html)) -> String {
    let mut html = Html::default();
    html.constant("<!DOCTYPE html>\n");
    html.element("html", &[("lang", &"en")], |html| {
        html.element("head", &[], |html| {
            html.void("meta", &[("charset", &"utf-8")]);
            html.void("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
            html.void("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
            html.leaf("title", &[], title);
            html.element("style", &[], |html| html.constant(STYLE));
        });
        html.element("body", &[], |html| {
            html.element("main", &[], inner);
        });
    });
    html.into_string()
}

/// The head of a page: name of the run, result, more about it.
pub(super) fn head(html: &mut Html, run: &str, result: &str, lede: &str, inner: impl FnOnce(&mut Html)) {
    html.element("header", &[], |html| {
        html.leaf("p", &[("class", &"run")], run);
        html.leaf("h1", &[], result);
        html.leaf("p", &[("class", &"lede")], lede);
        inner(html);
    });
}

pub(super) fn warnings(html: &mut Html, all: &[String]) {
    if !all.is_empty() {
        html.element("aside", &[("class", &"warnings")], |html| all.iter().for_each(|one| html.leaf("p", &[], one)));
    }
}

/// A section with its heading; the heading is drawn even when `inner` adds nothing, so callers check first.
pub(super) fn section(html: &mut Html, id: &str, title: &str, inner: impl FnOnce(&mut Html)) {
    html.element("section", &[("id", &id)], |html| {
        html.leaf("h2", &[], title);
        inner(html);
    });
}

/// A drawing with its title and what its numbers are.
pub(super) fn figure(html: &mut Html, title: &str, subtitle: &str, inner: impl FnOnce(&mut Html)) {
    captioned(html, "", title, subtitle, inner);
}

/// A drawing that keeps its width on a narrow screen and scrolls.
pub(super) fn figure_wide(html: &mut Html, title: &str, subtitle: &str, inner: impl FnOnce(&mut Html)) {
    captioned(html, "wide", title, subtitle, |html| html.element("div", &[("class", &"scroll")], inner));
}

fn captioned(html: &mut Html, class: &str, title: &str, subtitle: &str, inner: impl FnOnce(&mut Html)) {
    html.element("figure", &[("class", &class)], |html| {
        html.element("figcaption", &[], |html| {
            html.leaf("h3", &[], title);
            html.leaf("p", &[], subtitle);
        });
        inner(html);
    });
}
