//! SOAP envelopes: the request around the arguments, the reply around the result.

use super::fault::{Fault, read_soap_fault};
use crate::moref::MoRef;
use crate::xml::codec::{Encode, Field};
use crate::xml::reader::{Reader, XmlError};
use crate::xml::writer::Writer;

/// The arguments of a call, in WSDL order.
pub(crate) type Args<'a> = &'a [(&'a str, &'a dyn Encode)];

const NAMESPACES: [(&str, &str); 3] = [
    ("xmlns:soapenv", "http://schemas.xmlsoap.org/soap/envelope/"),
    ("xmlns:xsd", "http://www.w3.org/2001/XMLSchema"),
    ("xmlns:xsi", "http://www.w3.org/2001/XMLSchema-instance"),
];

/// Builds the request `method` on `this`. `cookie` goes into the SOAP header, for services other
/// than vim25 that expect the session there.
pub(crate) fn request(
    namespace: &str,
    method: &str,
    this: &MoRef,
    args: Args<'_>,
    cookie: Option<&str>,
) -> String {
    let mut writer = Writer::default();
    writer.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    writer.open_with("soapenv:Envelope", &NAMESPACES);
    if let Some(cookie) = cookie {
        writer.open("soapenv:Header");
        writer.leaf("vcSessionCookie", cookie);
        writer.close("soapenv:Header");
    }
    writer.open("soapenv:Body");
    writer.open_with(method, &[("xmlns", namespace)]);
    this.encode("_this", &mut writer);
    for (name, value) in args {
        value.encode(name, &mut writer);
    }
    writer.close(method);
    writer.close("soapenv:Body");
    writer.close("soapenv:Envelope");
    writer.finish()
}

#[derive(Debug)]
pub(crate) enum Reply<T> {
    Returned(T),
    Fault(Fault),
}

/// Moves the cursor into the first element of the body. Returns whether it is a fault.
fn enter_body(reader: &mut Reader<'_>) -> Result<bool, XmlError> {
    expect(reader, "Envelope")?;
    loop {
        let Some(part) = reader.next_child()? else {
            return Err(XmlError::Missing { of: "the envelope", field: "body" });
        };
        if part.name() == "Body" {
            break;
        }
        reader.skip()?;
    }
    match reader.next_child()? {
        Some(content) => Ok(content.name() == "Fault"),
        None => Err(XmlError::Missing { of: "the SOAP body", field: "content" }),
    }
}

/// Moves the cursor into the method's response, or returns the fault.
pub(crate) fn open_response(reader: &mut Reader<'_>) -> Result<Option<Fault>, XmlError> {
    if enter_body(reader)? { read_soap_fault(reader).map(Some) } else { Ok(None) }
}

fn expect(reader: &mut Reader<'_>, name: &'static str) -> Result<(), XmlError> {
    match reader.next_child()? {
        Some(start) if start.name() == name => Ok(()),
        Some(start) => Err(XmlError::Unexpected {
            found: start.name().chars().take(60).collect(),
            expected: name,
        }),
        None => Err(XmlError::Ended),
    }
}

/// Reads a whole reply. The `returnval` elements form the method's result.
pub(crate) fn reply<R: Field>(text: &str) -> Result<Reply<R>, XmlError> {
    let mut reader = Reader::new(text);
    if enter_body(&mut reader)? {
        return read_soap_fault(&mut reader).map(Reply::Fault);
    }
    let mut partial = R::Partial::default();
    while let Some(start) = reader.next_child()? {
        match start.name() {
            "returnval" => R::take(&mut partial, &start, &mut reader)?,
            _ => reader.skip()?,
        }
    }
    R::finish(partial, "the reply", "returnval").map(Reply::Returned)
}

#[cfg(test)]
mod tests {
    use super::super::fault::FaultKind;
    use super::*;

    fn envelope(body: &str) -> String {
        format!(
            r#"<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>{body}</e:Body></e:Envelope>"#
        )
    }

    #[test]
    fn a_request_carries_its_arguments_in_order_and_escaped() {
        let this = MoRef::new("SessionManager", "SessionManager");
        let text = request(
            "urn:vim25",
            "Login",
            &this,
            &[("userName", &"a<b"), ("password", &"p&q")],
            None,
        );
        assert!(text.ends_with(
            "<soapenv:Body><Login xmlns=\"urn:vim25\"><_this type=\"SessionManager\">SessionManager</_this>\
             <userName>a&lt;b</userName><password>p&amp;q</password></Login></soapenv:Body></soapenv:Envelope>"
        ));
    }

    #[test]
    fn results_are_one_value_many_or_none() {
        let one = envelope("<R><returnval>x</returnval></R>");
        assert!(matches!(reply::<String>(&one), Ok(Reply::Returned(s)) if s == "x"));
        let many = envelope("<R><returnval>1</returnval><returnval>2</returnval></R>");
        assert!(matches!(reply::<Vec<i32>>(&many), Ok(Reply::Returned(v)) if v == [1, 2]));
        let none = envelope("<R/>");
        assert!(matches!(reply::<Option<String>>(&none), Ok(Reply::Returned(None))));
        assert!(matches!(reply::<()>(&none), Ok(Reply::Returned(()))));
        assert!(matches!(reply::<String>(&none), Err(XmlError::Missing { .. })));
    }

    #[test]
    fn a_fault_is_distinguished_from_a_result() {
        let text = envelope(
            "<e:Fault><faultcode>ServerFaultCode</faultcode><faultstring>The session is not authenticated.</faultstring>\
             <detail><NotAuthenticatedFault xsi:type=\"NotAuthenticated\"><object type=\"Folder\">group-d1</object>\
             <privilegeId>System.View</privilegeId></NotAuthenticatedFault></detail></e:Fault>",
        );
        let Ok(Reply::Fault(fault)) = reply::<String>(&text) else { panic!("not a fault") };
        assert_eq!(fault.kind, FaultKind::NotAuthenticated);
        assert_eq!(&*fault.message, "The session is not authenticated.");
    }

    #[test]
    fn a_web_page_is_not_an_envelope() {
        let error = reply::<String>("<html><body>It works!</body></html>").unwrap_err();
        assert_eq!(error.to_string(), "expected the element Envelope, found html");
    }
}
